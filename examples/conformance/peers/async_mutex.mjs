// async-mutex: a Mutex per session, and runExclusive. A cancel calls mutex.cancel(), which rejects those that wait,
// and aborts the signal of the one that holds the lock.
// Check it with: turngate conform -- node examples/conformance/peers/async_mutex.mjs
import { E_CANCELED, Mutex } from 'async-mutex';
import { serve } from '../../../ports/node/index.mjs';

await serve(({ runner, watch }) => {
  const sessions = new Map();
  return {
    accept({ session, run }) {
      if (!sessions.has(session)) sessions.set(session, { mutex: new Mutex(), active: null });
      const at = sessions.get(session);
      let mine;
      const done = at.mutex.runExclusive(() => {
        mine = at.active = new AbortController();
        return runner(run, mine.signal);
      });
      watch(run, done, (error) => error === E_CANCELED || mine?.signal.aborted);
    },
    cancel({ session }) {
      sessions.get(session)?.mutex.cancel();
      sessions.get(session)?.active?.abort(new Error('cancelled'));
    },
  };
}, ['cancel']);
