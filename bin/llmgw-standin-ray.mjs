#!/usr/bin/env node
// `ray` for machines without one: see docs/stand-in.md.
import { ray } from '../dev/standin/ray.mjs';

ray(process.argv.slice(2));
