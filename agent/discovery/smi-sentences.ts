// What nvidia-smi says in sentences, as conditions. A known sentence counts before the exit code: codes differ between
// drivers, and "No devices were found" comes with 0 as well as with 6.
import type { Condition } from '../../contracts/inventory.js';
import { PCI, plain } from './cells.js';
import type { SmiOutput } from './nvidia-smi.js';

/** A GPU that the driver has lost; its index or its address, whichever the sentence gives. */
export interface LostGpu {
  bus: string | null;
  index: number | null;
  /** The driver's word for it: `GPU is lost`, `Unknown Error`. */
  word: string;
}

const DEVICE = /Unable to determine the device handle for\s+GPU(.*)$/i;

/** One line each, between the rows of the others or instead of them. */
export function lostGpus(text: string): LostGpu[] {
  const lost = new Map<string, LostGpu>();
  for (const line of plain(text).split('\n')) {
    const rest = DEVICE.exec(line)?.[1];
    if (rest === undefined) continue;
    const bus = PCI.exec(rest)?.[0] ?? null;
    const index = /^\s*(\d{1,3})(?=:\s)/.exec(rest)?.[1];
    const word = rest.slice(rest.lastIndexOf(': ') + 2).trim();
    const gpu = { bus, index: index === undefined ? null : Number(index), word: word.slice(0, 100) };
    lost.set(bus ?? index ?? '', gpu);
  }
  return [...lost.values()];
}

const STUCK = 'the driver is stuck; see the kernel log for Xid, reboot the node';

/** Sentences that stand for the whole output; the first that is found says it. */
const WHOLE: { match: RegExp; code: string; message: (text: string) => string }[] = [
  {
    match: /Driver\/library version mismatch/i,
    code: 'gpu_driver_mismatch',
    message: text => mismatch(/NVML library version: (\S+)/.exec(text)?.[1]),
  },
  {
    match: /couldn'?t communicate with the NVIDIA driver|Driver Not Loaded/i,
    code: 'gpu_driver_absent',
    message: () => ABSENT,
  },
  {
    match: /couldn'?t find libnvidia-ml|NVML Shared Library Not Found/i,
    code: 'gpu_driver_absent',
    message: () => NO_LIBRARY,
  },
  { match: /No devices (were )?found/i, code: 'gpu_none_found', message: () => NONE },
  {
    match: /Insufficient Permissions|blocked by the operating system/i,
    code: 'gpu_no_permission',
    message: () => FORBIDDEN,
  },
  {
    match: /Failed to initialize NVML: GPU is lost/i,
    code: 'gpu_lost',
    message: () => 'the driver has lost a GPU and answers nothing for the others: reboot the node',
  },
  {
    match: /Failed to initialize NVML: Timeout/i,
    code: 'gpu_driver_unresponsive',
    message: () => `the driver got no answer in time: ${STUCK}`,
  },
  {
    match: /requires? reset|Reset Required/i,
    code: 'gpu_needs_reset',
    message: () =>
      'a GPU requires a reset, and the driver answers nothing for the others: reset it (nvidia-smi --gpu-reset)',
  },
  {
    match: /(nvidia-smi\S*: (command )?not found|command not found)/i,
    code: 'gpu_tool_missing',
    message: () =>
      'the nvidia-smi that was run is a wrapper that does not find the real one: install the driver, or set discovery.nvidia_smi',
  },
  {
    match: /Failed to initialize NVML: Unknown Error/i,
    code: 'gpu_driver_failed',
    message: () =>
      'the NVIDIA driver answers with an unknown error: in a container the GPU devices were taken away (a daemon-reload does it; start the container anew), else see the kernel log',
  },
];

const ABSENT =
  'nvidia-smi cannot reach the NVIDIA driver: it is not loaded (modprobe nvidia; after a kernel update install the driver again)';
const NO_LIBRARY = "the NVIDIA driver's library libnvidia-ml is not installed, or not where the loader looks";
const NONE = 'the NVIDIA driver is loaded but found no GPU: see the kernel log, and lspci for the cards';
const FORBIDDEN = 'the agent may not ask the NVIDIA driver (insufficient permissions): run it as root';

function mismatch(library: string | undefined): string {
  const which = library === undefined ? 'after an upgrade' : `library version ${library}`;
  return `the NVIDIA driver in the kernel and its library differ (${which}): reboot the node or reload the kernel module; running engines go on, none can start`;
}

/** nvidia-smi's own codes, which are NVML's; for outputs without a sentence that is known. */
const BY_CODE: Record<number, { code: string; message: string }> = {
  4: { code: 'gpu_no_permission', message: FORBIDDEN },
  6: { code: 'gpu_none_found', message: NONE },
  8: { code: 'gpu_driver_failed', message: "a GPU's external power cables are not attached" },
  9: { code: 'gpu_driver_absent', message: ABSENT },
  12: { code: 'gpu_driver_absent', message: NO_LIBRARY },
  13: {
    code: 'gpu_driver_mismatch',
    message:
      "the NVIDIA library lacks a function that nvidia-smi needs: install both of the driver's version",
  },
  15: {
    code: 'gpu_lost',
    message: 'the driver has lost a GPU, or it is otherwise inaccessible: reboot the node',
  },
  18: { code: 'gpu_driver_mismatch', message: mismatch(undefined) },
  127: {
    code: 'gpu_tool_missing',
    message:
      'the nvidia-smi that was run does not find a program that it needs (exit 127): install the driver, or set discovery.nvidia_smi',
  },
};

/** @param rows how many GPUs the output listed. */
export function conditionsOf(output: SmiOutput, rows: number): Condition[] {
  const text = plain(output.text);
  const lost = lostGpus(text).map(lostCondition);
  const inforom = inforomConditions(text, output.code);
  if (rows > 0)
    return [...lost, ...inforom, ...(lost.length + inforom.length > 0 ? [] : afterRows(output, rows))];
  return lost.length > 0 ? [...lost, ...inforom] : [...inforom, whole(output, text)];
}

/** The GPUs are listed, and yet the program wasn't content. */
function afterRows({ code, text }: SmiOutput, rows: number): Condition[] {
  if (code === 0) return [];
  if (code !== null && BY_CODE[code] !== undefined && code !== 6) return [BY_CODE[code]];
  const how = code === null ? firstSentence(text) : `exited with ${code}`;
  return [{ code: 'gpu_tool_failed', message: `nvidia-smi listed ${rows} GPUs and then failed: ${how}` }];
}

function whole({ code, hung, text: raw }: SmiOutput, text: string): Condition {
  if (hung)
    return {
      code: 'gpu_driver_unresponsive',
      message: `${raw}: ${STUCK}`,
    };
  const known = WHOLE.find(({ match }) => match.test(text));
  if (known !== undefined) return { code: known.code, message: known.message(text) };
  if (code !== null && BY_CODE[code] !== undefined) return BY_CODE[code];
  const said = firstSentence(text);
  if (said === '' && code === 0)
    return { code: 'gpu_none_found', message: 'nvidia-smi listed no GPU and gave no reason' };
  const message =
    said === '' ? `nvidia-smi exited with ${code} without a word` : `nvidia-smi failed: ${said}`;
  return { code: 'gpu_tool_failed', message };
}

export const needsReset = (word: string): boolean => /requires? reset|reset required/i.test(word);

function lostCondition({ bus, index, word }: LostGpu): Condition {
  const which =
    bus !== null ? `at ${bus}` : index !== null ? `with index ${index}` : 'that nvidia-smi does not name';
  if (needsReset(word))
    return { code: 'gpu_needs_reset', message: `the GPU ${which} requires a reset (nvidia-smi --gpu-reset)` };
  return {
    code: 'gpu_lost',
    message: `the driver has lost the GPU ${which} (${word || 'no reason given'}): reboot the node`,
  };
}

/** The figures are right all the same: only what the board stores about itself is damaged. */
function inforomConditions(text: string, code: number | null): Condition[] {
  const found = [...text.matchAll(/infoROM is corrupted(?: at gpu ([0-9a-f:.]+))?/gi)].map(match => match[1]);
  if (found.length === 0 && code !== 14) return [];
  const places = found.length === 0 ? [undefined] : [...new Set(found)];
  return places.map(place => ({
    code: 'gpu_inforom',
    message: `the infoROM of ${place === undefined ? 'a GPU' : `the GPU at ${place}`} is corrupted: it works, have it replaced`,
  }));
}

/** The line that says something: a row of a table, or a list of options, doesn't. */
function firstSentence(text: string): string {
  const lines = text.split('\n').map(line => line.trim());
  return (lines.find(line => /[a-z]{3}/i.test(line)) ?? lines.find(line => line !== '') ?? '').slice(0, 200);
}
