// A stand-in for libnvidia-ml.so.1: NVML's exports, answering from a scenario file instead of a driver. For tests and
// measurements only; it is loaded exactly as the real library is, and nothing of it is part of the product.
//
// LLMGW_NVML_SCENARIO names the file. It is read again whenever it has changed, so that a test can pull a GPU off the
// bus while the agent looks. Lines are `key = value`; `#` starts a comment; `\xNN` in a value is that byte.
//
//   driver, nvml, count                           what the system functions say
//   FUNCTION.return = CODE                        every call of it ends with that code
//   FUNCTION.hang = 1 | deaf                      it never comes back; deaf: and SIGTERM is ignored
//   FUNCTION.crash = SIGNAL                       it raises that signal (11: SIGSEGV)
//   FUNCTION.delay_ms = N
//   gpuI.FUNCTION.return | hang | crash | delay_ms     the same for one GPU
//   gpuI.uuid, name, bus, total, free, used, reserved, cc (9.0), mig, mig_pending, ecc, ecc_pending, ecc_uncorrected,
//   ecc_corrected, remap (corrected uncorrected pending failure), recovery, fabric (state status clique health),
//   cluster (32 hex digits), virt, numa, compute_mode      what is absent has the figure of a healthy H100, numa none
//   gpuI.name.raw = 1                             fills the whole buffer with the value over and over, no end mark
//   gpuI.processK = PID BYTES                     BYTES `na`: the driver doesn't tell
//   gpuI.linkK = ACTIVE TYPE BUSID                remote type 0 GPU, 2 switch; absent: the link is not there
//   gpuI.p2p = STATUS STATUS …                    NVLink status with GPU 0, 1, …
//   gpuI.migK = UUID MEMORY_MB NAME
//   eventK = GPU TYPE DATA                        each is delivered once, in the order of K
//   calls = FILE                                  appends the name of each function called
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "nvml-layouts.h"

#define EXPORT __attribute__((visibility("default")))
#define GPUS_MAX 64
#define MIG_MAX 7
#define LINKS_MAX 18

enum { OK, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 6, INSUFFICIENT_SIZE };
enum { TIMEOUT = 10, ARGUMENT_VERSION_MISMATCH = 25 };

/// What a handle points to: a GPU, or a MIG instance of one.
struct nvmlDevice_st { int gpu, mig; };
struct nvmlEventSet_st { unsigned long long mask[GPUS_MAX]; };

static struct nvmlDevice_st devices[GPUS_MAX], instances[GPUS_MAX][MIG_MAX];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *text;
static size_t text_size;
static struct stat seen;
static int initialised, delivered;

static void reread(void) {
  const char *path = getenv("LLMGW_NVML_SCENARIO");
  struct stat now;
  if (path == NULL || stat(path, &now) != 0) return;
  if (text != NULL && now.st_ino == seen.st_ino && now.st_size == seen.st_size &&
      now.st_mtim.tv_sec == seen.st_mtim.tv_sec && now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec)
    return;
  FILE *file = fopen(path, "rb");
  if (file == NULL) return;
  free(text);
  text = calloc(1, (size_t)now.st_size + 1);
  text_size = fread(text, 1, (size_t)now.st_size, file);
  fclose(file);
  seen = now;
}

static int hex(char c) {
  return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/// The value of a key into `out`, ended by a NUL; its length, or -1 when there is none. The last line of a key counts.
static int value_of(const char *key, char *out, size_t size) {
  pthread_mutex_lock(&lock);
  reread();
  int found = -1;
  size_t length = strlen(key);
  for (char *line = text, *end; line != NULL && line < text + text_size; line = end + 1) {
    end = memchr(line, '\n', (size_t)(text + text_size - line));
    if (end == NULL) end = text + text_size;
    while (line < end && (*line == ' ' || *line == '\t')) line++;
    if ((size_t)(end - line) <= length || memcmp(line, key, length) != 0) continue;
    char *at = line + length;
    while (at < end && (*at == ' ' || *at == '\t')) at++;
    if (at == end || *at != '=') continue;
    at++;
    while (at < end && (*at == ' ' || *at == '\t')) at++;
    size_t n = 0;
    while (at < end && n + 1 < size) {
      if (end - at >= 4 && at[0] == '\\' && at[1] == 'x' && hex(at[2]) >= 0 && hex(at[3]) >= 0) {
        out[n++] = (char)(hex(at[2]) * 16 + hex(at[3]));
        at += 4;
      } else {
        out[n++] = *at++;
      }
    }
    out[n] = 0;
    found = (int)n;
  }
  pthread_mutex_unlock(&lock);
  return found;
}

static int text_of(int gpu, const char *name, char *out, size_t size) {
  char key[128];
  snprintf(key, sizeof key, "gpu%d.%s", gpu, name);
  return value_of(key, out, size);
}

static unsigned long long number_of(int gpu, const char *name, unsigned long long absent) {
  char value[64];
  return text_of(gpu, name, value, sizeof value) < 0 ? absent : strtoull(value, NULL, 0);
}

static int count(void) {
  char value[32];
  if (value_of("count", value, sizeof value) < 0) return 0;
  return (int)strtoul(value, NULL, 0);
}

static void pause_ms(long ms) {
  struct timespec t = {ms / 1000, ms % 1000 * 1000000};
  nanosleep(&t, NULL);
}

static void act(const char *prefix) {
  char key[160], value[32];
  snprintf(key, sizeof key, "%s.delay_ms", prefix);
  if (value_of(key, value, sizeof value) >= 0) pause_ms(atol(value));
  snprintf(key, sizeof key, "%s.crash", prefix);
  if (value_of(key, value, sizeof value) >= 0) {
    signal(atoi(value), SIG_DFL);
    raise(atoi(value));
  }
  snprintf(key, sizeof key, "%s.hang", prefix);
  if (value_of(key, value, sizeof value) >= 0) {
    if (strcmp(value, "deaf") == 0) signal(SIGTERM, SIG_IGN);
    for (;;) pause();
  }
}

/// Whether a word is anywhere in the scenario: most calls aren't spoken of, and must cost next to nothing.
static int mentioned(const char *word) {
  pthread_mutex_lock(&lock);
  reread();
  int found = text != NULL && memmem(text, text_size, word, strlen(word)) != NULL;
  pthread_mutex_unlock(&lock);
  return found;
}

/// What the scenario wants of this call; OK when nothing.
static int told(const char *function, int gpu) {
  if (!mentioned(function) && !mentioned("calls")) return OK;
  char key[160], value[512];
  if (value_of("calls", value, sizeof value) > 0) {
    FILE *file = fopen(value, "a");
    if (file != NULL) {
      fprintf(file, "%s\n", function);
      fclose(file);
    }
  }
  act(function);
  snprintf(key, sizeof key, "%s.return", function);
  if (value_of(key, value, sizeof value) >= 0) return atoi(value);
  if (gpu < 0) return OK;
  snprintf(key, sizeof key, "gpu%d.%s", gpu, function);
  act(key);
  snprintf(key, sizeof key, "gpu%d.%s.return", gpu, function);
  return value_of(key, value, sizeof value) >= 0 ? atoi(value) : OK;
}

#define SYSTEM()                                      \
  do {                                                \
    int code_ = told(__func__, -1);                   \
    if (code_ != OK) return code_;                    \
    if (!initialised) return UNINITIALIZED;           \
  } while (0)
#define DEVICE(dev)                                   \
  do {                                                \
    if (!initialised) return UNINITIALIZED;           \
    if ((dev) == NULL) return INVALID_ARGUMENT;       \
    int code_ = told(__func__, (dev)->gpu);           \
    if (code_ != OK) return code_;                    \
  } while (0)

/// Copies a string into a caller's buffer as the driver does; `raw` fills all of it.
static int give(int gpu, const char *name, const char *absent, char *out, unsigned size) {
  char value[1024], key[64], flag[8];
  int n = text_of(gpu, name, value, sizeof value);
  if (n < 0) n = snprintf(value, sizeof value, "%s", absent);
  snprintf(key, sizeof key, "%s.raw", name);
  if (text_of(gpu, key, flag, sizeof flag) > 0 && n > 0) {
    for (unsigned i = 0; i < size; i++) out[i] = value[i % (unsigned)n];
    return OK;
  }
  if ((unsigned)n + 1 > size) return INSUFFICIENT_SIZE;
  memcpy(out, value, (size_t)n + 1);
  return OK;
}

EXPORT int nvmlInit_v2(void) {
  int code = told(__func__, -1);
  if (code != OK) return code;
  for (int g = 0; g < GPUS_MAX; g++) {
    devices[g] = (struct nvmlDevice_st){g, -1};
    for (int m = 0; m < MIG_MAX; m++) instances[g][m] = (struct nvmlDevice_st){g, m};
  }
  initialised++;
  return OK;
}

EXPORT int nvmlShutdown(void) {
  SYSTEM();
  initialised--;
  return OK;
}

EXPORT const char *nvmlErrorString(int code) {
  (void)code;
  return "an error of the stand-in";
}

static int version(const char *key, const char *absent, char *out, unsigned size) {
  char value[256];
  if (value_of(key, value, sizeof value) < 0) snprintf(value, sizeof value, "%s", absent);
  if (strlen(value) + 1 > size) return INSUFFICIENT_SIZE;
  strcpy(out, value);
  return OK;
}

EXPORT int nvmlSystemGetDriverVersion(char *out, unsigned size) {
  SYSTEM();
  return version("driver", "580.95.05", out, size);
}

EXPORT int nvmlSystemGetNVMLVersion(char *out, unsigned size) {
  SYSTEM();
  return version("nvml", "13.580.95.05", out, size);
}

EXPORT int nvmlDeviceGetCount_v2(unsigned *out) {
  SYSTEM();
  *out = (unsigned)count();
  return OK;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *out) {
  if (!initialised) return UNINITIALIZED;
  int code = told(__func__, (int)index);
  if (code != OK) return code;
  if ((int)index >= count() || index >= GPUS_MAX) return INVALID_ARGUMENT;
  *out = &devices[index];
  return OK;
}

EXPORT int nvmlDeviceGetName(nvmlDevice_t dev, char *out, unsigned size) {
  DEVICE(dev);
  if (dev->mig < 0) return give(dev->gpu, "name", "NVIDIA H100 80GB HBM3", out, size);
  char key[16], value[256], uuid[128], name[128];
  unsigned long memory;
  snprintf(key, sizeof key, "mig%d", dev->mig);
  if (text_of(dev->gpu, key, value, sizeof value) < 0) return NOT_FOUND;
  if (sscanf(value, "%127s %lu %127[^\n]", uuid, &memory, name) < 3) strcpy(name, "MIG");
  if (strlen(name) + 1 > size) return INSUFFICIENT_SIZE;
  strcpy(out, name);
  return OK;
}

EXPORT int nvmlDeviceGetUUID(nvmlDevice_t dev, char *out, unsigned size) {
  DEVICE(dev);
  char absent[64];
  snprintf(absent, sizeof absent, "GPU-00000000-0000-4000-8000-%012d", dev->gpu);
  if (dev->mig < 0) return give(dev->gpu, "uuid", absent, out, size);
  char key[16], value[256];
  snprintf(key, sizeof key, "mig%d", dev->mig);
  if (text_of(dev->gpu, key, value, sizeof value) < 0) return NOT_FOUND;
  value[strcspn(value, " ")] = 0;
  if (strlen(value) + 1 > size) return INSUFFICIENT_SIZE;
  strcpy(out, value);
  return OK;
}

static void bus_of(int gpu, char *out, size_t size) {
  if (text_of(gpu, "bus", out, size) < 0) snprintf(out, size, "00000000:%02X:00.0", 0x18 + gpu);
}

static void fill_pci(const char *bus, nvmlPciInfo_t *out) {
  memset(out, 0, sizeof *out);
  snprintf(out->busId, sizeof out->busId, "%s", bus);
  unsigned domain = 0, number = 0, device = 0;
  if (sscanf(bus, "%x:%x:%x", &domain, &number, &device) == 3) {
    out->domain = domain;
    out->bus = number;
    out->device = device;
    snprintf(out->busIdLegacy, sizeof out->busIdLegacy, "%04X:%02X:%02X.0", domain & 0xffff, number & 0xff, device & 0xff);
  }
  out->pciDeviceId = 0x233010DE;
}

EXPORT int nvmlDeviceGetPciInfo_v3(nvmlDevice_t dev, nvmlPciInfo_t *out) {
  DEVICE(dev);
  char bus[64];
  bus_of(dev->gpu, bus, sizeof bus);
  fill_pci(bus, out);
  return OK;
}

static unsigned long long bytes(int gpu, const char *key, unsigned long long absent_mib) {
  return number_of(gpu, key, absent_mib << 20);
}

EXPORT int nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t dev, nvmlMemory_v2_t *out) {
  DEVICE(dev);
  if (out->version != nvmlMemory_v2) return ARGUMENT_VERSION_MISMATCH;
  out->total = bytes(dev->gpu, "total", 81559);
  out->reserved = bytes(dev->gpu, "reserved", 551);
  out->used = bytes(dev->gpu, "used", 4);
  out->free = bytes(dev->gpu, "free", 81004);
  return OK;
}

EXPORT int nvmlDeviceGetMemoryInfo(nvmlDevice_t dev, nvmlMemory_t *out) {
  DEVICE(dev);
  out->total = bytes(dev->gpu, "total", 81559);
  out->used = bytes(dev->gpu, "used", 4) + bytes(dev->gpu, "reserved", 551);
  out->free = bytes(dev->gpu, "free", 81004);
  return OK;
}

EXPORT int nvmlDeviceGetCudaComputeCapability(nvmlDevice_t dev, int *major, int *minor) {
  DEVICE(dev);
  char value[32];
  if (text_of(dev->gpu, "cc", value, sizeof value) < 0) strcpy(value, "9.0");
  *major = *minor = 0;
  sscanf(value, "%d.%d", major, minor);
  return OK;
}

EXPORT int nvmlDeviceGetMigMode(nvmlDevice_t dev, unsigned *current, unsigned *pending) {
  DEVICE(dev);
  *current = (unsigned)number_of(dev->gpu, "mig", 0);
  *pending = (unsigned)number_of(dev->gpu, "mig_pending", *current);
  return OK;
}

EXPORT int nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t dev, unsigned *out) {
  DEVICE(dev);
  *out = MIG_MAX;
  return OK;
}

EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t dev, unsigned index, nvmlDevice_t *out) {
  DEVICE(dev);
  char key[16], value[256];
  snprintf(key, sizeof key, "mig%u", index);
  if (index >= MIG_MAX || text_of(dev->gpu, key, value, sizeof value) < 0) return NOT_FOUND;
  *out = &instances[dev->gpu][index];
  return OK;
}

EXPORT int nvmlDeviceGetAttributes_v2(nvmlDevice_t dev, nvmlDeviceAttributes_t *out) {
  DEVICE(dev);
  if (dev->mig < 0) return INVALID_ARGUMENT;
  char key[16], value[256], uuid[128];
  unsigned long memory = 0;
  snprintf(key, sizeof key, "mig%d", dev->mig);
  if (text_of(dev->gpu, key, value, sizeof value) < 0) return NOT_FOUND;
  memset(out, 0, sizeof *out);
  sscanf(value, "%127s %lu", uuid, &memory);
  out->memorySizeMB = memory;
  return OK;
}

EXPORT int nvmlDeviceGetEccMode(nvmlDevice_t dev, int *current, int *pending) {
  DEVICE(dev);
  *current = (int)number_of(dev->gpu, "ecc", 1);
  *pending = (int)number_of(dev->gpu, "ecc_pending", (unsigned long long)*current);
  return OK;
}

EXPORT int nvmlDeviceGetTotalEccErrors(nvmlDevice_t dev, int type, int counter, unsigned long long *out) {
  DEVICE(dev);
  (void)counter;
  *out = number_of(dev->gpu, type == 1 ? "ecc_uncorrected" : "ecc_corrected", 0);
  return OK;
}

EXPORT int nvmlDeviceGetRemappedRows(nvmlDevice_t dev, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                                     unsigned *failure) {
  DEVICE(dev);
  char value[128];
  *corrected = *uncorrected = *pending = *failure = 0;
  if (text_of(dev->gpu, "remap", value, sizeof value) >= 0)
    sscanf(value, "%u %u %u %u", corrected, uncorrected, pending, failure);
  return OK;
}

EXPORT int nvmlDeviceGetFieldValues(nvmlDevice_t dev, int n, nvmlFieldValue_t *values) {
  DEVICE(dev);
  for (int i = 0; i < n; i++) {
    values[i].nvmlReturn = NOT_SUPPORTED;
    if (values[i].fieldId != 230) continue;
    char value[32];
    if (text_of(dev->gpu, "recovery", value, sizeof value) >= 0 && strcmp(value, "na") == 0) continue;
    values[i].nvmlReturn = OK;
    values[i].valueType = 1;
    values[i].value.uiVal = (unsigned)number_of(dev->gpu, "recovery", 0);
  }
  return OK;
}

struct fabric { unsigned state, clique, health; int status; unsigned char cluster[16]; };

static struct fabric fabric_of(int gpu) {
  struct fabric f = {0, 0, 1, OK, {0}};
  char value[128];
  if (text_of(gpu, "fabric", value, sizeof value) >= 0)
    sscanf(value, "%u %d %u %u", &f.state, &f.status, &f.clique, &f.health);
  if (text_of(gpu, "cluster", value, sizeof value) >= 32)
    for (int i = 0; i < 16; i++) f.cluster[i] = (unsigned char)(hex(value[2 * i]) * 16 + hex(value[2 * i + 1]));
  return f;
}

EXPORT int nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t dev, nvmlGpuFabricInfo_v3_t *out) {
  DEVICE(dev);
  char only[8];
  int v2_only = value_of("fabric_v2_only", only, sizeof only) > 0;
  if (out->version != nvmlGpuFabricInfo_v2 && (v2_only || out->version != nvmlGpuFabricInfo_v3))
    return ARGUMENT_VERSION_MISMATCH;
  struct fabric f = fabric_of(dev->gpu);
  memcpy(out->clusterUuid, f.cluster, 16);
  out->status = f.status;
  out->cliqueId = f.clique;
  out->state = (unsigned char)f.state;
  out->healthMask = 0;
  if (out->version == nvmlGpuFabricInfo_v3) out->healthSummary = (unsigned char)f.health;
  return OK;
}

EXPORT int nvmlDeviceGetGpuFabricInfo(nvmlDevice_t dev, nvmlGpuFabricInfo_t *out) {
  DEVICE(dev);
  struct fabric f = fabric_of(dev->gpu);
  memcpy(out->clusterUuid, f.cluster, 16);
  out->status = f.status;
  out->cliqueId = f.clique;
  out->state = (unsigned char)f.state;
  return OK;
}

EXPORT int nvmlDeviceGetVirtualizationMode(nvmlDevice_t dev, int *out) {
  DEVICE(dev);
  *out = (int)number_of(dev->gpu, "virt", 0);
  return OK;
}

EXPORT int nvmlDeviceGetNumaNodeId(nvmlDevice_t dev, unsigned *out) {
  DEVICE(dev);
  char value[32];
  if (text_of(dev->gpu, "numa", value, sizeof value) < 0) return NOT_SUPPORTED;
  *out = (unsigned)strtoul(value, NULL, 0);
  return OK;
}

EXPORT int nvmlDeviceGetComputeMode(nvmlDevice_t dev, int *out) {
  DEVICE(dev);
  *out = (int)number_of(dev->gpu, "compute_mode", 0);
  return OK;
}

static int processes(nvmlDevice_t dev, unsigned *n, nvmlProcessInfo_t *out) {
  unsigned there = 0;
  char key[32], value[64];
  nvmlProcessInfo_t found[512];
  for (; there < 512; there++) {
    snprintf(key, sizeof key, "process%u", there);
    if (text_of(dev->gpu, key, value, sizeof value) < 0) break;
    char *rest;
    nvmlProcessInfo_t p = {.gpuInstanceId = ~0u, .computeInstanceId = ~0u};
    p.pid = (unsigned)strtoul(value, &rest, 0);
    while (*rest == ' ') rest++;
    p.usedGpuMemory = strcmp(rest, "na") == 0 ? ~0ull : strtoull(rest, NULL, 0);
    found[there] = p;
  }
  if (out == NULL || *n < there) {
    int code = there == 0 ? OK : INSUFFICIENT_SIZE;
    *n = there;
    return code;
  }
  memcpy(out, found, there * sizeof *out);
  *n = there;
  return OK;
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t dev, unsigned *n, nvmlProcessInfo_t *out) {
  DEVICE(dev);
  return processes(dev, n, out);
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t dev, unsigned *n, nvmlProcessInfo_t *out) {
  DEVICE(dev);
  return processes(dev, n, out);
}

struct link { unsigned active, type; char bus[64]; };

static int link_of(int gpu, unsigned number, struct link *out) {
  char key[32], value[128];
  if (number >= LINKS_MAX) return INVALID_ARGUMENT;
  snprintf(key, sizeof key, "link%u", number);
  if (text_of(gpu, key, value, sizeof value) < 0) return NOT_SUPPORTED;
  out->bus[0] = 0;
  out->active = out->type = 0;
  sscanf(value, "%u %u %63s", &out->active, &out->type, out->bus);
  return OK;
}

EXPORT int nvmlDeviceGetNvLinkState(nvmlDevice_t dev, unsigned number, int *out) {
  DEVICE(dev);
  struct link l;
  int code = link_of(dev->gpu, number, &l);
  if (code == OK) *out = (int)l.active;
  return code;
}

EXPORT int nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t dev, unsigned number, int *out) {
  DEVICE(dev);
  struct link l;
  int code = link_of(dev->gpu, number, &l);
  if (code == OK) *out = (int)l.type;
  return code;
}

EXPORT int nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t dev, unsigned number, nvmlPciInfo_t *out) {
  DEVICE(dev);
  struct link l;
  int code = link_of(dev->gpu, number, &l);
  if (code == OK) fill_pci(l.bus, out);
  return code;
}

EXPORT int nvmlDeviceGetP2PStatus(nvmlDevice_t a, nvmlDevice_t b, int caps, int *status) {
  DEVICE(a);
  if (b == NULL) return INVALID_ARGUMENT;
  *status = 5;
  if (caps != 2) return OK;
  char value[512];
  if (text_of(a->gpu, "p2p", value, sizeof value) < 0) return OK;
  char *at = value;
  for (int i = 0; *at != 0; i++) {
    char *end;
    long s = strtol(at, &end, 0);
    if (end == at) break;
    if (i == b->gpu) *status = (int)s;
    at = end;
  }
  return OK;
}

EXPORT int nvmlEventSetCreate(nvmlEventSet_t *out) {
  SYSTEM();
  *out = calloc(1, sizeof **out);
  return OK;
}

EXPORT int nvmlEventSetFree(nvmlEventSet_t set) {
  SYSTEM();
  free(set);
  return OK;
}

EXPORT int nvmlDeviceRegisterEvents(nvmlDevice_t dev, unsigned long long mask, nvmlEventSet_t set) {
  DEVICE(dev);
  char value[32];
  // Old drivers refuse the whole call for one bit that they don't know.
  if (value_of("events_known", value, sizeof value) > 0 && (mask & ~strtoull(value, NULL, 0)) != 0) return NOT_SUPPORTED;
  set->mask[dev->gpu] |= mask;
  return OK;
}

EXPORT int nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *out, unsigned ms) {
  SYSTEM();
  for (unsigned waited = 0;; waited += 10) {
    char key[32], value[128];
    snprintf(key, sizeof key, "event%d", delivered);
    if (mentioned(key) && value_of(key, value, sizeof value) >= 0) {
      int gpu = 0;
      unsigned long long type = 0, data = 0;
      char *at;
      gpu = (int)strtol(value, &at, 0);
      type = strtoull(at, &at, 0);
      data = strtoull(at, &at, 0);
      delivered++;
      if (gpu < 0 || gpu >= GPUS_MAX || (set->mask[gpu] & type) == 0) continue;
      *out = (nvmlEventData_t){.device = &devices[gpu], .eventType = type, .eventData = data, .gpuInstanceId = ~0u,
                               .computeInstanceId = ~0u};
      return OK;
    }
    if (waited >= ms) return TIMEOUT;
    pause_ms(10);
  }
}
