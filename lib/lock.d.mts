/** The lock is this process's until `release` or its end, however it ends. */
export interface Lock {
  release(): Promise<void>;
}
/**
 * Takes the lock `name`, or says who has it (null pid: the holder didn't answer in time) and with which `note`, one
 * line that it gave; empty: none.
 */
export function tryLock(
  name: string,
  note?: string,
): Promise<{ lock: Lock } | { holder: number | null; note: string }>;
/** The pid of who has the lock, without a try to take it; null: nobody, or the holder didn't answer in time. */
export function lockHolder(name: string): Promise<number | null>;
/** Waits until the lock is free; `onWait` is called once with the holder's pid. */
export function waitForLock(name: string, onWait?: (holder: number | null) => void): Promise<Lock>;
