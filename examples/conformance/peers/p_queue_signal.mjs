// p-queue: a queue with concurrency one per session, and an AbortSignal for every task, as its documentation says.
// Check it with: turngate conform -- node examples/conformance/peers/p_queue_signal.mjs
import PQueue from 'p-queue';
import { serve } from '../../../ports/node/index.mjs';

await serve(({ runner, watch }) => {
  const sessions = new Map();
  return {
    accept({ session, run }) {
      if (!sessions.has(session)) sessions.set(session, { queue: new PQueue({ concurrency: 1 }), open: new Set() });
      const { queue, open } = sessions.get(session);
      const mine = new AbortController();
      open.add(mine);
      const done = queue.add(({ signal }) => runner(run, signal), { signal: mine.signal });
      done.catch(() => {}).finally(() => open.delete(mine));
      watch(run, done, () => mine.signal.aborted);
    },
    cancel({ session }) {
      for (const each of [...(sessions.get(session)?.open ?? [])]) each.abort(new Error('cancelled'));
    },
  };
}, ['cancel']);
