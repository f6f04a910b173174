// p-queue: a queue with concurrency one per session. A cancel clears the queue, and aborts the task that runs.
// Check it with: turngate conform -- node examples/conformance/peers/p_queue_clear.mjs p-queue
// and, for the version before, with p-queue-9 as the argument.
import { serve } from '../../../ports/node/index.mjs';

const { default: PQueue } = await import(process.argv[2] ?? 'p-queue');

await serve(({ runner, watch }) => {
  const sessions = new Map();
  return {
    accept({ session, run }) {
      if (!sessions.has(session)) sessions.set(session, { queue: new PQueue({ concurrency: 1 }), open: new Map() });
      const { queue, open } = sessions.get(session);
      const mine = new AbortController();
      open.set(run, mine);
      const done = queue.add(() => runner(run, mine.signal));
      done.catch(() => {}).finally(() => open.delete(run));
      watch(run, done, () => mine.signal.aborted);
    },
    cancel({ session }) {
      const at = sessions.get(session);
      at?.queue.clear();
      for (const each of at?.open.values() ?? []) each.abort(new Error('cancelled'));
    },
    clear({ session }) {
      sessions.get(session)?.queue.clear();
    },
  };
}, ['cancel', 'clear']);
