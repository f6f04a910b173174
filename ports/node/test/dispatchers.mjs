// A right dispatcher, and the same with one mistake each.
export class Right {
  #runner; #onComplete; #sessions = new Map();

  constructor(runner, onComplete) {
    this.#runner = runner;
    this.#onComplete = onComplete;
  }

  submit(session, run) {
    const at = this.#sessions.get(session) ?? { queue: [], active: null };
    this.#sessions.set(session, at);
    if (at.active) at.queue.push(run);
    else this.start(at, run);
  }

  cancel(session) {
    this.drop(session, { cancelled: true });
    this.#sessions.get(session)?.active?.abort(new Error('cancelled'));
  }

  clear(session) {
    this.drop(session, { error: 'cleared from the queue' });
  }

  drop(session, outcome) {
    for (const run of this.#sessions.get(session)?.queue.splice(0) ?? []) this.#onComplete(run, outcome);
  }

  async start(at, run) {
    const active = (at.active = new AbortController());
    let outcome = {};
    try {
      await this.#runner(run, active.signal);
    } catch (error) {
      outcome = active.signal.aborted ? { cancelled: true } : { error: error.message };
    }
    at.active = null;
    this.#onComplete(run, outcome);
    this.handOff(at, outcome);
  }

  handOff(at) {
    const next = at.queue.shift();
    if (next) this.start(at, next);
  }
}

export class Stranded extends Right {
  handOff(at, outcome) {
    if (!outcome.error) super.handOff(at);
  }
}

export class KeepsItsQueue extends Right {
  drop(session, outcome) {
    if (!outcome.cancelled) super.drop(session, outcome);
  }
}
