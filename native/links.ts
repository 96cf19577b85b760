// NVLink of a GPU: its links one by one, and what the driver says of each pair. Neither alone tells who is linked: a
// link to a switch names no peer, and the pair's word holds for links that are down.
import { NVML } from './codes.js';
import type { Gpu } from './gpu.js';
import { textOf } from './library.js';
import type { GpuReading, Link } from './protocol.js';

/** Links are asked for until the driver refuses one; this bounds a driver that never does. */
const LINKS_MAX = 64;
/** NVML_P2P_CAPS_INDEX_NVLINK. */
const CAPS_NVLINK = 2;

/**
 * null: the driver can't tell.
 * @param places asks each link where it leads. Without, only the first active one is asked what it leads to: a board's
 *   links all lead to switches or none does.
 */
export async function linksOf(gpu: Gpu, places: boolean): Promise<Link[] | null> {
  const links: Link[] = [];
  for (let at = 0; at < LINKS_MAX; at++) {
    const active = [null] as (number | null)[];
    const code = await gpu.call('nvmlDeviceGetNvLinkState', ', uint32_t, _Out_ int *', at, active);
    if (code === NVML.NOT_SUPPORTED) continue; // switched off, or not wired on this board; others may follow
    if (code !== NVML.OK) break;
    const link: Link = { active: active[0] === 1, remote: null, bus: null };
    if (link.active && (places || links.every(other => !other.active))) link.remote = await remoteOf(gpu, at);
    if (link.active && places) link.bus = await busOf(gpu, at);
    links.push(link);
  }
  return links.length === 0 ? null : links;
}

async function remoteOf(gpu: Gpu, at: number): Promise<number | null> {
  const remote = [null] as (number | null)[];
  const code = await gpu.call('nvmlDeviceGetNvLinkRemoteDeviceType', ', uint32_t, _Out_ int *', at, remote);
  return code === NVML.OK ? remote[0]! : null;
}

async function busOf(gpu: Gpu, at: number): Promise<string | null> {
  const pci = {} as { busId?: Uint8Array };
  const parameters = ', uint32_t, _Out_ nvmlPciInfo_t *';
  const code = await gpu.call('nvmlDeviceGetNvLinkRemotePciInfo_v2', parameters, at, pci);
  return code === NVML.OK ? textOf(Uint8Array.from(pci.busId!)) || null : null;
}

/** null: the library has no word on pairs. */
export async function pairsOf(gpu: Gpu, all: Gpu[]): Promise<GpuReading['p2p']> {
  const pairs: Record<number, number | null> = {};
  for (const other of all) {
    if (other.index === gpu.index) continue;
    const status = [null] as (number | null)[];
    const code = await gpu.call(
      'nvmlDeviceGetP2PStatus',
      ', nvmlDevice_t, int, _Out_ int *',
      other.handle,
      CAPS_NVLINK,
      status,
    );
    if (code === NVML.FUNCTION_NOT_FOUND) return null;
    pairs[other.index] = code === NVML.OK ? status[0]! : null;
  }
  return pairs;
}
