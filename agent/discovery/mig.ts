// `nvidia-smi -L`: what GPUs in MIG mode are split into.

/** By the GPU's index. Both forms of the UUID: `MIG-<uuid>`, and the older `MIG-GPU-<uuid>/gi/ci`. */
export function migInstances(text: string): Map<number, { uuid: string; name: string }[]> {
  const found = new Map<number, { uuid: string; name: string }[]>();
  let index: number | null = null;
  for (const line of text.split(/\r?\n/)) {
    const gpu = /^GPU (\d{1,3}):/.exec(line)?.[1];
    if (gpu !== undefined) index = Number(gpu);
    const instance = /^\s+MIG\s+(\S+)\s+Device\s+\d+:\s+\(UUID: (MIG-[^)\s]+)\)/.exec(line);
    if (instance === null || index === null) continue;
    found.set(index, [...(found.get(index) ?? []), { name: instance[1]!, uuid: instance[2]! }]);
  }
  return found;
}
