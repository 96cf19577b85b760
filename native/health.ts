// What the driver keeps of a GPU's health: remapped rows, the recovery it asks for, the NVLink fabric behind its switches.
import koffi from 'koffi';
import { NVML } from './codes.js';
import type { Gpu } from './gpu.js';
import { FabricInfoV1, FabricInfoV2, FabricInfoV3, FieldValue, versionOf } from './layouts.js';
import type { Figures, GpuReading } from './protocol.js';

/** NVML_FI_DEV_GET_GPU_RECOVERY_ACTION. */
const FIELD_RECOVERY_ACTION = 230;

export async function remapOf(gpu: Gpu, codes: Figures['codes']): Promise<GpuReading['remap']> {
  const out = Array.from({ length: 4 }, () => [null] as (number | null)[]);
  const told = await gpu.figure(codes, 'remap', () =>
    gpu.call('nvmlDeviceGetRemappedRows', ', _Out_ uint32_t *'.repeat(4), ...out),
  );
  if (!told) return null;
  const [corrected, uncorrected, pending, failure] = out.map(value => value[0]!);
  return { corrected: corrected!, uncorrected: uncorrected!, pending: pending!, failure: failure! };
}

export async function recoveryActionOf(gpu: Gpu, codes: Figures['codes']): Promise<number | null> {
  const field = Buffer.alloc(koffi.sizeof(FieldValue));
  koffi.encode(field, 'uint32_t', FIELD_RECOVERY_ACTION);
  const asked = await gpu.figure(codes, 'recovery_action', () =>
    gpu.call('nvmlDeviceGetFieldValues', ', int, _Inout_ uint8_t *', 1, field),
  );
  if (!asked) return null;
  const { nvmlReturn, value } = koffi.decode(field, FieldValue);
  if (nvmlReturn !== NVML.OK) {
    codes.recovery_action = nvmlReturn;
    return null;
  }
  // An unsigned int by the header; only its width's bytes are set.
  return Number(BigInt(value) & 0xffff_ffffn);
}

export async function fabricOf(gpu: Gpu, codes: Figures['codes']): Promise<GpuReading['fabric']> {
  for (const [type, version] of [
    [FabricInfoV3, 3],
    [FabricInfoV2, 2],
  ] as const) {
    const out = { version: versionOf(type, version) } as FabricOut & { version: number };
    const code = await gpu.call('nvmlDeviceGetGpuFabricInfoV', `, _Inout_ ${type.name} *`, out);
    if (code === NVML.OK) return told(out);
    if (code === NVML.FUNCTION_NOT_FOUND) break;
    if (code === NVML.ARGUMENT_VERSION_MISMATCH || code === NVML.INVALID_ARGUMENT) continue;
    codes.fabric = code;
    return null;
  }
  const out = {} as FabricOut;
  const known = await gpu.figure(codes, 'fabric', () =>
    gpu.call('nvmlDeviceGetGpuFabricInfo', `, _Out_ ${FabricInfoV1.name} *`, out),
  );
  return known ? told(out) : null;
}

interface FabricOut {
  clusterUuid: Uint8Array;
  status: number;
  cliqueId: number;
  state: number;
  healthSummary?: number;
}

const told = (out: FabricOut): NonNullable<GpuReading['fabric']> => ({
  state: out.state,
  status: out.status,
  cluster: Buffer.from(out.clusterUuid).toString('hex'),
  clique: out.cliqueId,
  health: out.healthSummary ?? null,
});
