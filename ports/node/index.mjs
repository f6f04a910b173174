// The port of the conformance kit for a promise-based dispatcher: it answers questions, one object for each.
import { createInterface } from 'node:readline';
import { setImmediate as turnOfTheLoop } from 'node:timers/promises';
import { inspect } from 'node:util';

export { canPlay, playVector, playVectors, readVectors } from './vectors.mjs';

// Answers the questions of the kit from standard input on standard output, until they end.
export async function serve(make, features) {
  const subject = new Subject(make, features);
  for await (const line of createInterface({ input: process.stdin })) {
    process.stdout.write(JSON.stringify(await subject.ask(JSON.parse(line))) + '\n');
  }
}

// These may last until their run is complete.
const MAY_WAIT = new Set(['accept', 'enter', 'interrupt', 'reject', 'into', 'fold', 'finish', 'fail']);

// One dispatcher at a time behind the port. `make` is a class with submit, cancel and clear, whose constructor gets a
// runner and a callback for completions; or a function that gets a port and returns an operation for each of the
// features, and `close` if there is one. An operation of a real-time dispatcher returns a promise, which is settled when
// the dispatcher has taken the operation in.
export class Subject {
  #make; #inRealTime; #port; #operations; #calls = new Map();

  constructor(make, features = ['cancel', 'clear']) {
    this.#make = make;
    this.features = features;
    this.#inRealTime = features.includes('real_time');
  }

  async ask(question) {
    const answer = { id: question.id };
    if (question.op === 'hello') return { ...answer, features: this.features };
    if (question.op === 'reset') {
      await this.close();
      this.#port = new Port(this.#inRealTime);
      this.#calls.clear();
      this.#operations = { ...(await adapted(this.#make, this.#port)), ...this.#port.runners() };
    } else if (question.op === 'residue') {
      answer.residue = await this.#operations.residue();
    } else if (question.op !== 'look') {
      const calls = [];
      for (const each of question.op === 'burst' ? question.ops : [question]) {
        if (each.after) await new Promise((go) => setTimeout(go, each.after));
        if (!this.#operations[each.op]) throw new Error(`the subject has no operation ${each.op}`);
        const call = this.#operations[each.op](each);
        calls.push(call);
        if (!MAY_WAIT.has(each.op)) this.#expect(call, each.op);
      }
      if (this.#inRealTime) await Promise.all(calls);
    }
    // Every settled promise runs its reactions before the loop turns: after that, nothing more happens.
    await turnOfTheLoop();
    const [hangs] = this.#calls.values();
    if (hangs && this.#port.isQuiet && !this.#inRealTime) {
      throw new Error(`${hangs} hangs: its promise is pending, although nothing is in flight any more`);
    }
    return { ...answer, ...this.#port.shown() };
  }

  // A call whose promise is pending must return when nothing is in flight, at the latest.
  #expect(call, op) {
    if (typeof call?.then !== 'function') return;
    this.#calls.set(call, op);
    call.then(() => this.#calls.delete(call));
  }

  async close() {
    this.#port?.leave();
    await this.#operations?.close?.();
  }
}

// What one program sees. A later program has a port of its own, so it hears nothing of an earlier one.
class Port {
  #inRealTime; #accepted = new Set(); #atWork = new Map(); #open = new Map(); #inFlight = new Set(); #seen = [];

  constructor(inRealTime) {
    this.#inRealTime = inRealTime;
  }

  // The work of a turn: shows that it has started, then waits to be told how it ends.
  runner = (run, signal) => {
    this.#look();
    this.#seen.push(this.#accepted.delete(run) ? { event: 'enter', run, state: 'active' } : { event: 'handoff', run });
    return new Promise((finish, fail) => {
      this.#atWork.set(run, { finish: () => finish('text'), fail: () => fail(new Error('no luck')) });
      signal?.addEventListener('abort', () => fail(signal.reason), { once: true });
    }).finally(() => this.#atWork.delete(run));
  };

  accepts(run) {
    this.#accepted.add(run);
    this.#inFlight.add(run);
  }

  get isQuiet() {
    return this.#inFlight.size === 0;
  }

  refused = (run) => {
    this.#accepted.delete(run);
    this.#inFlight.delete(run);
    this.#seen.push({ event: 'refused', run });
  };

  complete = (run, outcome = {}) => {
    this.#seen.push(this.#ended(run, outcome));
  };

  // Shows how a run ended when its promise is settled, which may be before any caller learns of it. Unless `isCancel`
  // says otherwise, a promise that is rejected with an AbortError shows a run that was cancelled.
  watch = (run, promise, isCancel = (error) => error?.name === 'AbortError') => {
    const at = { promise, event: null };
    const heard = (outcome) => {
      this.#open.delete(run);
      const event = this.#ended(run, outcome);
      if (at.event) Object.assign(at.event, event);
      else this.#seen.push(event);
    };
    this.#open.set(run, at);
    promise.then(
      () => heard({}),
      (error) => heard(isCancel(error) ? { cancelled: true } : { error: String(error?.message ?? error) }),
    );
  };

  // Keeps a place for each promise that is settled and whose reactions have not run yet. Only `inspect` can tell.
  #look() {
    for (const at of this.#open.values()) {
      if (!at.event && !inspect(at.promise, { depth: 0 }).includes('<pending>')) this.#seen.push((at.event = {}));
    }
  }

  #ended(run, { cancelled = false, error } = {}) {
    this.#accepted.delete(run);
    this.#inFlight.delete(run);
    return { event: 'complete', run, cancelled, ...(error ? { error } : {}) };
  }

  runners() {
    return {
      finish: ({ run }) => this.#atWork.get(run)?.finish(),
      fail: ({ run }) => this.#atWork.get(run)?.fail(),
    };
  }

  shown() {
    if (!this.#inRealTime) {
      for (const run of this.#accepted) this.#seen.push({ event: 'enter', run, state: 'queued' });
      this.#accepted.clear();
    }
    return { events: this.#seen.splice(0), at_work: [...this.#atWork.keys()] };
  }

  leave() {
    for (const runner of this.#atWork.values()) runner.finish();
  }
}

async function adapted(make, port) {
  const operations = make.prototype ? dispatcher(new make(port.runner, port.complete)) : await make(port);
  for (const name of ['accept', 'interrupt', 'reject']) {
    const own = operations[name];
    if (own) operations[name] = (asked) => (port.accepts(asked.run), own(asked));
  }
  return operations;
}

const dispatcher = (it) => ({
  accept: ({ session, run }) => it.submit(session, run),
  cancel: ({ session }) => it.cancel(session),
  clear: ({ session }) => it.clear(session),
});
