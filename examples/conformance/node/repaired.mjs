// The twin of stranded.mjs, repaired: a turn hands off whichever way it ends.
// Check it with: turngate conform -- node examples/conformance/node/repaired.mjs
import { serve } from '../../../ports/node/index.mjs';

class Dispatcher {
  #runner; #onComplete; #sessions = new Map();

  constructor(runner, onComplete) {
    this.#runner = runner;
    this.#onComplete = onComplete;
  }

  submit(session, run) {
    const at = this.#sessions.get(session) ?? { queue: [], active: null };
    this.#sessions.set(session, at);
    if (at.active) at.queue.push(run);
    else this.#start(at, run);
  }

  cancel(session) {
    this.#drop(session, { cancelled: true });
    this.#sessions.get(session)?.active?.abort(new Error('cancelled'));
  }

  clear(session) {
    this.#drop(session, { error: 'cleared from the queue' });
  }

  #drop(session, outcome) {
    for (const run of this.#sessions.get(session)?.queue.splice(0) ?? []) this.#onComplete(run, outcome);
  }

  async #start(at, run) {
    const active = (at.active = new AbortController());
    let outcome = {};
    try {
      await this.#runner(run, active.signal);
    } catch (error) {
      outcome = active.signal.aborted ? { cancelled: true } : { error: error.message };
    }
    at.active = null;
    this.#onComplete(run, outcome);
    const next = at.queue.shift();
    if (next) this.#start(at, next);
  }
}

await serve(Dispatcher);
