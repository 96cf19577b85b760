// What `--json` prints.

export function print(value: unknown): void {
  console.log(JSON.stringify(value, null, 2));
}
