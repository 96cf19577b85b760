// A hold that was left without proof, when an operator asks about it: the node looks again, and ends it with proof, or by
// the operator's word (INV-1, INV-2). Its agent decides which: it lets go of nothing that it can still stop.
import type { StopProof } from '../contracts/engine.js';
import type { ProveAgain } from '../contracts/messages.js';
import type { LeftHold, ProvenAgain } from '../contracts/status.js';
import type { LedgerInput } from '../domain/ledger/step.js';
import { activityFault } from './failures.js';
import { settling } from './profiles.js';

export async function proveAgain(
  hold: LeftHold,
  asked: ProveAgain,
  tell: (input: LedgerInput) => void,
): Promise<ProvenAgain> {
  const { node, by } = asked;
  const { replica, fence, rank } = hold;
  const order = { replica, fence, rank, reason: `${by} asks for the proof again` };
  const look = (word: boolean): Promise<StopProof> =>
    settling(
      node,
      `is ${replica} (fence ${fence}) gone from ${node}? Asked by ${by}${word ? ', whose word stands' : ''}`,
    ).stop(word ? { ...order, by_word: by } : order);
  const left = (why: string, gpus = hold.gpus): ProvenAgain => ({ ...hold, outcome: 'left', why, gpus });
  try {
    let proof = await look(false);
    const others = proof.leaked
      .filter(l => asked.gpus !== null && !asked.gpus.includes(l.gpu))
      .map(l => l.gpu);
    if (proof.leaked.length > 0 && asked.word && others.length > 0)
      return left(
        `it holds ${others.join(', ')} too, which were not named: a hold is cleared as a whole`,
        proof.leaked,
      );
    if (proof.leaked.length > 0 && asked.word) proof = await look(true);
    if (proof.proof === 'operator') {
      tell({ kind: 'clear_leak', node, slots: hold.slots, by, fence });
      return { ...hold, outcome: 'cleared' };
    }
    tell({ kind: 'settled', fence, node, proof });
    if (proof.leaked.length === 0)
      return { ...hold, outcome: 'proven', why: `proof ${proof.proof}`, gpus: [] };
    return left(
      asked.word ? 'its agent takes no word for a proof: it is of an older release' : '',
      proof.leaked,
    );
  } catch (err) {
    const fault = activityFault(err);
    return left(fault.kind === 'refused' ? fault.sentence : `${node} did not take the order`);
  }
}
