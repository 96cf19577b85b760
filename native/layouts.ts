// NVML's structs (API 13), as koffi must lay them out. x86-64 and aarch64 agree. A struct's version is its size and a
// number: a wrong layout is refused by the driver (ARGUMENT_VERSION_MISMATCH), or worse, not.
import koffi, { type TypeObject } from 'koffi';

/** Opaque to callers; the driver hands out the same pointer for the same GPU while it is initialised. */
export const Device = koffi.pointer('nvmlDevice_t', koffi.opaque());
export const EventSet = koffi.pointer('nvmlEventSet_t', koffi.opaque());

export const PciInfo = koffi.struct('nvmlPciInfo_t', {
  busIdLegacy: koffi.array('uint8_t', 16),
  domain: 'uint32_t',
  bus: 'uint32_t',
  device: 'uint32_t',
  pciDeviceId: 'uint32_t',
  pciSubSystemId: 'uint32_t',
  busId: koffi.array('uint8_t', 32),
});

export const Memory = koffi.struct('nvmlMemory_t', { total: 'uint64_t', free: 'uint64_t', used: 'uint64_t' });

export const MemoryV2 = koffi.struct('nvmlMemory_v2_t', {
  version: 'uint32_t',
  total: 'uint64_t',
  reserved: 'uint64_t',
  free: 'uint64_t',
  used: 'uint64_t',
});

export const ProcessInfo = koffi.struct('nvmlProcessInfo_t', {
  pid: 'uint32_t',
  usedGpuMemory: 'uint64_t',
  gpuInstanceId: 'uint32_t',
  computeInstanceId: 'uint32_t',
});

export const EventData = koffi.struct('nvmlEventData_t', {
  device: Device,
  eventType: 'uint64_t',
  eventData: 'uint64_t',
  gpuInstanceId: 'uint32_t',
  computeInstanceId: 'uint32_t',
});

const FABRIC = {
  clusterUuid: koffi.array('uint8_t', 16),
  status: 'int',
  cliqueId: 'uint32_t',
  state: 'uint8_t',
} as const;

/** Without a version field; deprecated since 13.0. */
export const FabricInfoV1 = koffi.struct('nvmlGpuFabricInfo_t', { ...FABRIC });

export const FabricInfoV2 = koffi.struct('nvmlGpuFabricInfo_v2_t', {
  version: 'uint32_t',
  ...FABRIC,
  healthMask: 'uint32_t',
});

export const FabricInfoV3 = koffi.struct('nvmlGpuFabricInfo_v3_t', {
  version: 'uint32_t',
  ...FABRIC,
  healthMask: 'uint32_t',
  healthSummary: 'uint8_t',
});

export const DeviceAttributes = koffi.struct('nvmlDeviceAttributes_t', {
  multiprocessorCount: 'uint32_t',
  sharedCopyEngineCount: 'uint32_t',
  sharedDecoderCount: 'uint32_t',
  sharedEncoderCount: 'uint32_t',
  sharedJpegCount: 'uint32_t',
  sharedOfaCount: 'uint32_t',
  gpuInstanceSliceCount: 'uint32_t',
  computeInstanceSliceCount: 'uint32_t',
  memorySizeMB: 'uint64_t',
});

/** `value` is a union in C, read here by `valueType`. */
export const FieldValue = koffi.struct('nvmlFieldValue_t', {
  fieldId: 'uint32_t',
  scopeId: 'uint32_t',
  timestamp: 'int64_t',
  latencyUsec: 'int64_t',
  valueType: 'int',
  nvmlReturn: 'int',
  value: 'uint64_t',
});

/** What the `version` member of a struct must hold. */
export const versionOf = (struct: TypeObject, version: number): number =>
  koffi.sizeof(struct) + version * 0x1000000;
