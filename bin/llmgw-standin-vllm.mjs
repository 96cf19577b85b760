#!/usr/bin/env node
// `vllm` for machines without one: see docs/stand-in.md.
import { main } from '../dev/standin/main.mjs';

main(process.argv.slice(2));
