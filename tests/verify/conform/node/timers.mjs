// A sound dispatcher that does everything a few milliseconds later, and has the newer operations.
import { setTimeout as sleep } from 'node:timers/promises';
import { serve } from '../../../../ports/node/index.mjs';

const features = ['cancel', 'cancel_run', 'interrupt', 'reject', 'residue', 'wait', 'real_time'];

await serve((port) => {
  const sessions = new Map();
  const of = new Map();

  async function work(session, at) {
    while (at.queue.length) {
      const { run, control } = (at.active = at.queue.shift());
      await sleep(2);
      let outcome = {};
      try {
        if (!control.signal.aborted) await port.runner(run, control.signal);
      } catch (error) {
        outcome = { error: error.message };
      }
      at.active = null;
      port.complete(run, control.signal.aborted ? { cancelled: true } : outcome);
      of.delete(run);
    }
    sessions.delete(session);
  }

  async function accept({ session, run }) {
    await sleep(1);
    const idle = !sessions.has(session);
    const at = sessions.get(session) ?? { queue: [], active: null };
    sessions.set(session, at);
    const job = { run, control: new AbortController() };
    at.queue.push(job);
    of.set(run, job);
    if (idle) work(session, at);
  }

  async function cancel({ session }) {
    const at = sessions.get(session);
    for (const { run } of at?.queue.splice(0) ?? []) {
      of.delete(run);
      port.complete(run, { cancelled: true });
    }
    at?.active?.control.abort(new Error('cancelled'));
  }

  return {
    accept,
    cancel,
    async cancel_run({ run }) {
      const job = of.get(run);
      const at = [...sessions.values()].find((each) => each.queue.includes(job));
      if (at) {
        at.queue.splice(at.queue.indexOf(job), 1);
        of.delete(run);
        port.complete(run, { cancelled: true });
      } else job?.control.abort(new Error('cancelled'));
    },
    async interrupt(asked) {
      await cancel(asked);
      await accept(asked);
    },
    async reject(asked) {
      if (sessions.has(asked.session)) port.refused(asked.run);
      else await accept(asked);
    },
    residue: () => sessions.size + of.size,
    wait: () => sleep(20),
  };
}, features);
