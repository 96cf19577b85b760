// Calls to Temporal whose answer an operator waits for: bounded, and told in words when the answer doesn't come.
import { randomUUID } from 'node:crypto';
import {
  ApplicationFailure,
  type Client,
  isGrpcDeadlineError,
  WorkflowUpdateFailedError,
  WorkflowUpdateRPCTimeoutOrCancelledError,
} from '@temporalio/client';
import { isErrorCode, LlmgwError } from '../contracts/errors.js';

/** No call of an operator waits longer: below the time that ctl waits for an answer (10 s). */
export const ANSWER_MS = 8_000;

export interface Asked {
  /** What was asked, for the sentence. */
  what: string;
  /** Where it shows whether it was taken all the same; null: nothing was asked for. */
  workflowId: string | null;
  /** Default ANSWER_MS. */
  within?: number | undefined;
  /** Default: `within` from now. */
  end?: number;
}

/** UNAVAILABLE when time is up; what was asked may have been taken by then. */
export async function answered<T>(client: Client, asked: Asked, call: () => Promise<T>): Promise<T> {
  const { what, workflowId, within = ANSWER_MS, end = Date.now() + within } = asked;
  try {
    return await inTime(end, client.connection.withDeadline(end, call));
  } catch (err) {
    if (!isLate(err)) throw err;
    const next =
      workflowId === null
        ? ''
        : `; what was asked may be done yet, see \`llmgw temporal workflow describe --workflow-id ${workflowId}\``;
    throw new LlmgwError(
      'UNAVAILABLE',
      `${what} was not answered within ${within / 1000} s: Temporal or its worker is down or behind${next}`,
      { cause: err },
    );
  }
}

/** The SDK holds a deadline against each attempt of its own: with Temporal away the attempts go on behind it. */
const SLACK_MS = 300;

class Late extends Error {}

const isLate = (err: unknown): boolean =>
  err instanceof Late || isGrpcDeadlineError(err) || err instanceof WorkflowUpdateRPCTimeoutOrCancelledError;

function inTime<T>(end: number, work: Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Late('no answer in time')), Math.max(0, end - Date.now()) + SLACK_MS);
  });
  return Promise.race([work, late]).finally(() => clearTimeout(timer));
}

const AGAIN_MS = 50;

/**
 * The task that the update came with was dropped: a signal arrived while the workflow continued as new. It wasn't taken,
 * and asking again is what there is to do.
 */
const isNotTaken = (err: unknown): boolean => {
  const cause = (err as { cause?: { code?: unknown; details?: unknown } } | null)?.cause;
  // gRPC's FAILED_PRECONDITION.
  return cause?.code === 9 && String(cause.details).includes('workflow task failure');
};

/** A workflow's update; its refusal comes as the catalogued error that it is. Throws WorkflowNotFoundError too. */
export async function updated<T>(
  client: Client,
  workflowId: string,
  update: string,
  args: unknown[],
  within?: number,
): Promise<T> {
  // The SDK knows the arguments' types only from a definition that the control plane doesn't load.
  const options = { args, updateId: randomUUID() } as { args: [unknown]; updateId: string };
  const end = Date.now() + (within ?? ANSWER_MS);
  const ask = (): Promise<T> =>
    client.workflow.getHandle(workflowId).executeUpdate<T, [unknown]>(update, options);
  try {
    return await answered(client, { what: workflowId, workflowId, within, end }, async () => {
      for (;;) {
        try {
          return await ask();
        } catch (err) {
          if (!isNotTaken(err) || Date.now() > end) throw err;
          await new Promise(resolve => setTimeout(resolve, AGAIN_MS));
        }
      }
    });
  } catch (err) {
    if (err instanceof WorkflowUpdateFailedError && err.cause instanceof ApplicationFailure) {
      const code = err.cause.type;
      throw new LlmgwError(isErrorCode(code) ? code : 'INTERNAL', err.cause.message, { cause: err });
    }
    throw err;
  }
}
