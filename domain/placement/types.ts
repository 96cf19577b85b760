// What placement is asked with, and what it answers.
import type { GrantMember, NodeFacts } from '../../contracts/messages.js';

/** A node with what is free on it: usable, not held, not foreign. */
export interface Candidate {
  facts: Omit<NodeFacts, 'running'>;
  free: number;
  /** Why nothing is granted on it whatever is free, or null. */
  blocked?: string | null;
  cordoned: boolean;
  draining: boolean;
}

export type Placed =
  /** `fabric`: that all members of a gang are on (INV-3); null: one member. */
  | { fits: true; members: GrantMember[]; fabric: string | null; why: string }
  /**
   * `hopeless`: no waiting helps, see refusals.ts. `reason` is one sentence. `refused`: no node that could host it is left
   * that hasn't refused the spec.
   */
  | {
      fits: false;
      reason: string;
      hopeless: boolean;
      refusals: { reason: string; nodes: string[] }[];
      refused?: true;
    };

/**
 * - scope: the spec itself leaves the node out
 * - fatal: tried and refused, or the engine is missing: no use in waiting for this node
 * - size: it can't host this shape as it is
 * - passing: occupied, silent, cordoned: goes away by itself
 */
export interface Refusal {
  reason: string;
  kind: 'scope' | 'fatal' | 'size' | 'passing';
}

export type NodeRefusal = Refusal & { node: string };

/** GPUs that each member has. */
export const memberSize = (shape: { tensor_parallel: number; pipeline_parallel: number; nodes: number }) =>
  (shape.tensor_parallel * shape.pipeline_parallel) / shape.nodes;

export const byText = (a: string, b: string): number => (a < b ? -1 : a > b ? 1 : 0);

/** Names in a sentence: a fleet has thousands of nodes, and a signal isn't longer for that (INV-11). */
export function listed(names: string[], most = 4): string {
  if (names.length <= most) return names.join(', ');
  return `${names.slice(0, most - 1).join(', ')} and ${names.length - most + 1} more`;
}
