/** Path of the stand-in library, built if need be. `without`: functions that it lacks, as an older driver's does. */
export function buildStandin(options?: { without?: string[] }): string;
/** Path of the compiled helper, built if need be. */
export function buildHelper(): string;
