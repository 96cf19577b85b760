// Reads the imports of the sources: who imports whom, lazily or not, and which packages a part pulls in with it.
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { builtinModules } from 'node:module';
import path from 'node:path';

export const ROOT = path.join(import.meta.dirname, '../..');

export interface Import {
  /** Relative to the root, as the target is named in the source: `contracts/ids.js`; a package by its name. */
  to: string;
  kind: 'file' | 'package' | 'builtin';
  /** Erased when it is compiled. */
  type: boolean;
  /** `import()`: loaded when it is needed. */
  lazy: boolean;
}

export interface Source {
  file: string;
  text: string;
  imports: Import[];
}

/** Every TypeScript and JavaScript source below `folder`, generated code left out. */
export function sourcesOf(folder: string): Source[] {
  const top = path.join(ROOT, folder);
  if (!existsSync(top)) return [];
  return readdirSync(top, { recursive: true, withFileTypes: true })
    .filter(e => e.isFile() && /\.(ts|mjs)$/.test(e.name) && !/\.d\.m?ts$/.test(e.name))
    .map(e => path.relative(ROOT, path.join(e.parentPath, e.name)))
    .filter(file => !file.startsWith('proto/gen/'))
    .sort()
    .map(file => {
      const text = readFileSync(path.join(ROOT, file), 'utf8');
      return { file, text, imports: importsOf(file, text) };
    });
}

const STATEMENT = /^\s*(?:import|export)\s+(type\s)?[^'";]*?from\s*'([^']+)'|^\s*import\s*'([^']+)'/gm;
const CALL = /\bimport\(\s*'([^']+)'\s*\)/g;

export function importsOf(file: string, text: string): Import[] {
  const code = withoutComments(text);
  return [
    ...[...code.matchAll(STATEMENT)].map(m => ({
      ...target(file, (m[2] ?? m[3])!),
      type: m[1] !== undefined,
      lazy: false,
    })),
    ...[...code.matchAll(CALL)].map(m => ({ ...target(file, m[1]!), type: false, lazy: true })),
  ];
}

/** The name of the file that an import means: `.js` in the source is `.ts` on disk. */
export function fileOf(to: string): string {
  const ts = to.replace(/\.js$/, '.ts');
  return existsSync(path.join(ROOT, ts)) ? ts : to;
}

/** Packages that the process of `entry` may ever load, types left out. */
export function packagesOf(entry: string): string[] {
  const packages = new Set<string>();
  const seen = new Set<string>();
  const visit = (file: string): void => {
    if (seen.has(file)) return;
    seen.add(file);
    for (const i of importsOf(file, readFileSync(path.join(ROOT, file), 'utf8'))) {
      if (i.type) continue;
      if (i.kind === 'package') packages.add(i.to);
      if (i.kind === 'file') visit(fileOf(i.to));
    }
  };
  visit(entry);
  return [...packages].sort();
}

function target(file: string, spec: string): Pick<Import, 'to' | 'kind'> {
  if (spec.startsWith('.')) return { kind: 'file', to: path.join(path.dirname(file), spec) };
  const name = spec.split('/', spec.startsWith('@') ? 2 : 1).join('/');
  const builtin = spec.startsWith('node:') || builtinModules.includes(name);
  return builtin ? { kind: 'builtin', to: spec } : { kind: 'package', to: name };
}

/** Whole-line and block comments: the only ones that can look like an import to the patterns above. */
export const withoutComments = (text: string): string =>
  text.replace(/\/\*[\s\S]*?\*\//g, '').replace(/^\s*\/\/.*$/gm, '');
