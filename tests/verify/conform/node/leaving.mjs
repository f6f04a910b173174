// A dispatcher that goes on with what it has after the kit has dropped it, and tells of it late.
import { setImmediate as turnOfTheLoop } from 'node:timers/promises';
import { serve } from '../../../../ports/node/index.mjs';

class Leaving {
  #queue = []; #active = false; #runner; #onComplete;

  constructor(runner, onComplete) {
    this.#runner = runner;
    this.#onComplete = onComplete;
  }

  submit(session, run) {
    this.#queue.push(run);
    if (!this.#active) this.#next();
  }

  cancel() {}
  clear() {}

  async #next() {
    this.#active = true;
    while (this.#queue.length) {
      const run = this.#queue.shift();
      let outcome = {};
      try {
        await this.#runner(run, new AbortController().signal);
      } catch (error) {
        outcome = { error: error.message };
      }
      for (let turns = 0; turns < 3; turns += 1) await turnOfTheLoop();
      this.#onComplete(run, outcome);
    }
    this.#active = false;
  }
}

await serve(Leaving, []);
