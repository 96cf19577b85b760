// The stand-in for the Python of an SGLang: `-m sglang.launch_server …`, and what asks it for its versions.
import { raw } from './log.mjs';
import { launchServer, SGLANG_VERSION } from './sglang.mjs';

/** @param {string[]} argv what follows the program's name */
export function python(argv) {
  if (argv[0] === '-m' && argv[1] === 'sglang.launch_server') return launchServer(argv.slice(2));
  if (argv[0] === '-c' && argv[1]?.includes('sglang')) return raw(`${SGLANG_VERSION}\n`);
  if (argv[0] === '--version' || argv[0] === '-V') return raw('Python 3.12.11\n');
  process.stderr.write(
    `llmgw-standin-python: error: it knows \`-m sglang.launch_server\` and \`-c\` for SGLang's version, not ${JSON.stringify(argv)}\n`,
  );
  process.exit(2);
}
