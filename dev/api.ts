// What dev asks of the parts over HTTP while they come up.

/** These are local and answer in milliseconds; a part that hangs is asked again. */
const ANSWER_MS = 1_000;

export async function answersOk(url: string): Promise<boolean> {
  return (await get(url)) !== null;
}

/** The number of GPUs of a connected node; null while the control plane doesn't list it as connected. */
export async function connectedGpus(httpPort: number, nodeId: string): Promise<number | null> {
  const nodes = await get(`http://127.0.0.1:${httpPort}/v1/nodes`);
  if (nodes === null) return null;
  const rows = (await nodes.json().catch(() => null)) as unknown;
  if (!Array.isArray(rows)) return null;
  const node = rows.find(row => row.node_id === nodeId && row.state === 'connected');
  return node === undefined ? null : Number(node.gpus?.total ?? 0);
}

/** Whether the router offers the model: a replica is ready a moment before every router knows. */
export async function routerOffers(routerPort: number, model: string): Promise<boolean> {
  const models = await get(`http://127.0.0.1:${routerPort}/v1/models`);
  const list = (await models?.json().catch(() => null)) as { data?: { id?: string }[] } | null;
  return list?.data?.some(m => m.id === model) ?? false;
}

async function get(url: string): Promise<Response | null> {
  try {
    const response = await fetch(url, { signal: AbortSignal.timeout(ANSWER_MS) });
    if (response.ok) return response;
    await response.body?.cancel();
    return null;
  } catch {
    // Not listening yet.
    return null;
  }
}
