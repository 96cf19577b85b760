// What the C compiler makes of NVML's structs, against what koffi makes of native/layouts.ts. In a process of its own:
// koffi is never loaded where the tests run.
import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { expect, it } from 'vitest';
import { buildHelper } from '../../scripts/lib/nvml-standin.mjs';

const root = fileURLToPath(new URL('../..', import.meta.url));

const STRUCTS: Record<string, string[]> = {
  nvmlPciInfo_t: ['busIdLegacy', 'domain', 'bus', 'device', 'pciDeviceId', 'pciSubSystemId', 'busId'],
  nvmlMemory_t: ['total', 'free', 'used'],
  nvmlMemory_v2_t: ['version', 'total', 'reserved', 'free', 'used'],
  nvmlProcessInfo_t: ['pid', 'usedGpuMemory', 'gpuInstanceId', 'computeInstanceId'],
  nvmlEventData_t: ['device', 'eventType', 'eventData', 'gpuInstanceId', 'computeInstanceId'],
  nvmlGpuFabricInfo_t: ['clusterUuid', 'status', 'cliqueId', 'state'],
  nvmlGpuFabricInfo_v2_t: ['version', 'clusterUuid', 'status', 'cliqueId', 'state', 'healthMask'],
  nvmlGpuFabricInfo_v3_t: [
    'version',
    'clusterUuid',
    'status',
    'cliqueId',
    'state',
    'healthMask',
    'healthSummary',
  ],
  nvmlDeviceAttributes_t: ['multiprocessorCount', 'computeInstanceSliceCount', 'memorySizeMB'],
  nvmlFieldValue_t: ['fieldId', 'scopeId', 'timestamp', 'latencyUsec', 'valueType', 'nvmlReturn', 'value'],
};

/** Sizes as the driver's own header has them (API 13, compiled on x86-64). */
const SIZES: Record<string, number> = {
  nvmlPciInfo_t: 68,
  nvmlMemory_t: 24,
  nvmlMemory_v2_t: 40,
  nvmlProcessInfo_t: 24,
  nvmlEventData_t: 32,
  nvmlGpuFabricInfo_t: 28,
  nvmlGpuFabricInfo_v2_t: 36,
  nvmlGpuFabricInfo_v3_t: 40,
  nvmlDeviceAttributes_t: 40,
  nvmlFieldValue_t: 40,
};

it('lays out each struct as the C compiler does', () => {
  const cache = join(root, 'node_modules/.cache');
  mkdirSync(cache, { recursive: true });
  const dir = mkdtempSync(join(cache, 'layouts-'));
  try {
    const prints = Object.entries(STRUCTS).flatMap(([name, members]) => [
      `printf("${name} %zu\\n", sizeof(${name}));`,
      ...members.map(member => `printf("${name}.${member} %zu\\n", offsetof(${name}, ${member}));`),
    ]);
    const header = join(root, 'native/standin/nvml-layouts.h');
    const source = `#include <stddef.h>\n#include <stdio.h>\n#include "${header}"\nint main(void) {\n${prints.join('\n')}\nprintf("versions %x %x %x\\n", (unsigned)nvmlMemory_v2, (unsigned)nvmlGpuFabricInfo_v2, (unsigned)nvmlGpuFabricInfo_v3);\n}\n`;
    writeFileSync(join(dir, 'layouts.c'), source);
    execFileSync('cc', ['-o', join(dir, 'layouts'), join(dir, 'layouts.c')]);
    const inC = execFileSync(join(dir, 'layouts'), { encoding: 'utf8' });

    const layouts = new URL('layouts.js', `file://${buildHelper()}`);
    const script = `
      import koffi from 'koffi';
      import { MemoryV2, FabricInfoV2, FabricInfoV3, versionOf } from ${JSON.stringify(layouts.href)};
      for (const [name, members] of Object.entries(${JSON.stringify(STRUCTS)})) {
        console.log(name, koffi.sizeof(name));
        for (const member of members) console.log(name + '.' + member, koffi.offsetof(name, member));
      }
      const hex = (type, version) => versionOf(type, version).toString(16);
      console.log('versions', hex(MemoryV2, 2), hex(FabricInfoV2, 2), hex(FabricInfoV3, 3));`;
    writeFileSync(join(dir, 'layouts.mjs'), script);
    const inKoffi = execFileSync(process.execPath, [join(dir, 'layouts.mjs')], { encoding: 'utf8' });

    expect(inKoffi).toBe(inC);
    expect(inC).toContain('versions 2000028 2000024 3000028');
    for (const [name, size] of Object.entries(SIZES)) expect(inC).toContain(`${name} ${size}\n`);
  } finally {
    rmSync(dir, { recursive: true });
  }
});
