#!/usr/bin/env node
// `python` of an SGLang, for machines without one: see docs/stand-in.md.
import { python } from '../dev/standin/python.mjs';

python(process.argv.slice(2));
