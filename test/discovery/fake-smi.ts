// A program that answers as nvidia-smi would: each kind of question has a file with the answer and an exit code.
import { chmodSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

export interface Answer {
  text: string;
  code?: number;
}

export interface FakeSmi {
  bin: string;
  set(answers: { base?: Answer; optional?: Answer; apps?: Answer; topo?: Answer }): void;
}

export function fakeSmi(dir: string): FakeSmi {
  const bin = join(dir, 'nvidia-smi');
  const script = `#!/bin/sh
echo "$*" >> ${dir}/calls
case "$*" in
  *query-gpu=index*) kind=base ;;
  *query-gpu=uuid*) kind=optional ;;
  *query-compute-apps*) kind=apps ;;
  topo*) kind=topo ;;
esac
cat ${dir}/$kind.txt
exit "$(cat ${dir}/$kind.code)"
`;
  writeFileSync(bin, script);
  chmodSync(bin, 0o755);
  const fake: FakeSmi = {
    bin,
    set(answers) {
      for (const [kind, { text, code = 0 }] of Object.entries(answers)) {
        writeFileSync(join(dir, `${kind}.txt`), text);
        writeFileSync(join(dir, `${kind}.code`), String(code));
      }
    },
  };
  fake.set({ base: { text: '' }, optional: { text: '' }, apps: { text: '' }, topo: { text: '' } });
  return fake;
}

/** A row of the base query. */
export const row = (
  index: number,
  changes: Partial<Record<'total' | 'used' | 'free', string>> = {},
): string => {
  const { total = '81559', used = '4', free = '81555' } = changes;
  return `${index}, GPU-${index}, NVIDIA H100 80GB HBM3, 00000000:${18 + index}:00.0, ${total}, ${used}, ${free}, 580.95.05\n`;
};
