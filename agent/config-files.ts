// The files that agent.yaml names, for --check-config.
import {
  type FileWarning,
  fileWarnings,
  type NamedFile,
  secretsDir,
  tlsWarnings,
} from '../lib/config/named-files.js';
import type { AgentConfig } from './config.js';

export function agentFileWarnings(config: AgentConfig): FileWarning[] {
  const { tls, discovery } = config;
  const programs = Object.entries(config.engines).flatMap(([name, engine]): NamedFile[] => {
    const program = (key: string, file: string | null | undefined, ...rest: number[]): NamedFile => ({
      path: ['engines', name, key, ...rest],
      file: file ?? null,
      kind: 'program',
    });
    if (engine.type === 'vllm') return [program('bin', engine.bin), program('ray_bin', engine.ray_bin)];
    return [engine.type === 'sglang' ? program('python', engine.python) : program('argv', engine.argv[0], 0)];
  });
  return [
    ...tlsWarnings(['tls'], tls, 'client'),
    ...fileWarnings([
      { path: ['engine_key_file'], file: config.engine_key_file, kind: 'secret' },
      secretsDir(config.secrets_dir),
      { path: ['discovery', 'nvidia_smi'], file: discovery.nvidia_smi, kind: 'program' },
      { path: ['discovery', 'nvml_library'], file: discovery.nvml_library, kind: 'file' },
      ...programs,
    ]),
  ];
}
