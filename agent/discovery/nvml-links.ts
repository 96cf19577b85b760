// NVLink islands from what NVML tells of links and pairs (INV-4): NVSwitch, direct links, bridged pairs, cube mesh.
import type { Condition } from '../../contracts/inventory.js';
import { NVML, P2P_OK, REMOTE } from '../../native/codes.js';
import type { GpuReading } from '../../native/protocol.js';
import { maximalCliques } from './topology.js';

/** Its links are known to lead to other GPUs: there is no switch between. */
export function leadsToGpusOnly(gpu: GpuReading): boolean {
  const remotes = activeLinks(gpu).flatMap(link => link.remote ?? []);
  return remotes.length > 0 && remotes.every(remote => remote === REMOTE.GPU);
}

export function islandsOf(gpus: readonly GpuReading[]): { islands: string[][]; conditions: Condition[] } {
  const able = gpus.filter(gpu => gpu.handle === NVML.OK && gpu.uuid !== null && gpu.mig?.current !== 1);
  const pairs: [number, number][] = [];
  const conditions: Condition[] = [];
  for (const a of able)
    for (const b of able) {
      if (a.index >= b.index) continue;
      const [one, other] = [leads(a, b), leads(b, a)];
      if (one && other) pairs.push([a.index, b.index]);
      else if (one || other)
        conditions.push({
          code: 'gpu_nvlink_broken',
          message: `only one of GPU ${a.index} and GPU ${b.index} shows an NVLink between them: it is not counted on (nvidia-smi nvlink -s)`,
        });
    }
  const uuids = new Map(able.map(gpu => [gpu.index, gpu.uuid!]));
  const cliques = maximalCliques([...uuids.keys()], pairs);
  return { islands: cliques.map(clique => clique.map(index => uuids.get(index)!)), conditions };
}

const activeLinks = (gpu: GpuReading) => gpu.links?.filter(link => link.active) ?? [];

/**
 * One end's word. The driver's on the pair comes first, since links to a switch name no peer; but it holds for a GPU
 * whose links are all down as well.
 */
function leads(from: GpuReading, to: GpuReading): boolean {
  const links = activeLinks(from);
  if (from.links !== null && links.length === 0) return false;
  const status = from.p2p?.[to.index];
  if (status != null) return status === P2P_OK;
  // A driver without a word on pairs: links to it, or to the switches that all share.
  return links.some(
    link => link.remote === REMOTE.SWITCH || (link.remote !== null && sameBus(link.bus, to.pci_bus_id)),
  );
}

/** `0000:13:00.0` and `00000000:13:00.0` are one place. */
function sameBus(a: string | null, b: string | null): boolean {
  const short = (bus: string) => bus.toLowerCase().replace(/^0+(?=[0-9a-f]{4}:)/, '');
  return a !== null && b !== null && short(a) === short(b);
}
