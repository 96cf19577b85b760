// NVML's numbers that the agent and its helper speak of. No koffi here: the agent loads this module.

/** nvmlReturn_t. */
export const NVML = {
  OK: 0,
  UNINITIALIZED: 1,
  INVALID_ARGUMENT: 2,
  NOT_SUPPORTED: 3,
  NO_PERMISSION: 4,
  NOT_FOUND: 6,
  INSUFFICIENT_SIZE: 7,
  INSUFFICIENT_POWER: 8,
  DRIVER_NOT_LOADED: 9,
  TIMEOUT: 10,
  IRQ_ISSUE: 11,
  LIBRARY_NOT_FOUND: 12,
  FUNCTION_NOT_FOUND: 13,
  CORRUPTED_INFOROM: 14,
  GPU_IS_LOST: 15,
  RESET_REQUIRED: 16,
  OPERATING_SYSTEM: 17,
  LIB_RM_VERSION_MISMATCH: 18,
  IN_USE: 19,
  MEMORY: 20,
  NO_DATA: 21,
  VGPU_ECC_NOT_SUPPORTED: 22,
  INSUFFICIENT_RESOURCES: 23,
  FREQ_NOT_SUPPORTED: 24,
  ARGUMENT_VERSION_MISMATCH: 25,
  DEPRECATED: 26,
  NOT_READY: 27,
  GPU_NOT_FOUND: 28,
  INVALID_STATE: 29,
  RESET_TYPE_NOT_SUPPORTED: 30,
  UNKNOWN: 999,
} as const;

const NAMES = new Map<number, string>(Object.entries(NVML).map(([name, code]) => [code, name]));

export const codeName = (code: number): string => NAMES.get(code) ?? `code ${code}`;

/** Bits of nvmlEventData_t.eventType. */
export const EVENTS = {
  DOUBLE_BIT_ECC: 0x2,
  XID: 0x8,
  MIG_CONFIG: 0x100,
  DRAM_RETIREMENT_FAILURE: 0x800,
  FATAL_POISON: 0x2000,
  GPU_UNAVAILABLE: 0x4000,
  RECOVERY_ACTION: 0x8000,
} as const;

/** Remote ends of an NVLink. */
export const REMOTE = { GPU: 0, SWITCH: 2 } as const;

/** nvmlDeviceGetP2PStatus: status of a pair that is linked. */
export const P2P_OK = 0;

/** A virtual GPU, seen from its guest. */
export const VIRTUALIZATION_VGPU = 2;
