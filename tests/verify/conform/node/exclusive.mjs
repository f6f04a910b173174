// A promise-based mutex: it lets the next in before the holder learns that its turn has ended.
import { serve } from '../../../../ports/node/index.mjs';

await serve((port) => {
  const sessions = new Map();

  async function exclusive(session, work) {
    const at = sessions.get(session) ?? { held: false, waiting: [] };
    sessions.set(session, at);
    if (at.held) await new Promise((go) => at.waiting.push(go));
    at.held = true;
    try {
      return await work();
    } finally {
      const next = at.waiting.shift();
      if (next) next();
      else at.held = false;
    }
  }

  return { accept: ({ session, run }) => port.watch(run, exclusive(session, () => port.runner(run))) };
}, []);
