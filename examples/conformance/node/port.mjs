// The port of the conformance kit for a promise-based dispatcher: JSON lines over standard input and output.
import { createInterface } from 'node:readline';
import { setImmediate as turnOfTheLoop } from 'node:timers/promises';
import { inspect } from 'node:util';

// `make` gets a port and returns a dispatcher: a class with submit, cancel and clear, or an object with operations.
export async function serve(make, features = ['cancel', 'clear']) {
  let port, operations;

  for await (const line of createInterface({ input: process.stdin })) {
    const asked = JSON.parse(line);
    if (asked.op === 'hello') {
      say({ id: asked.id, features });
      continue;
    }
    if (asked.op === 'reset') {
      port?.leave();
      operations?.close?.();
      port = new Port(features.includes('real_time'));
      operations = { ...(await adapted(make, port)), ...port.runners() };
    } else {
      for (const each of asked.op === 'burst' ? asked.ops : [asked]) operations[each.op](each);
    }
    // Every promise that is settled runs its reactions before the loop turns: then nothing more happens.
    await turnOfTheLoop();
    say({ id: asked.id, ...port.shown() });
  }
}

// What one program sees. A later program has a port of its own, so it hears nothing of an earlier one.
class Port {
  #accepted = new Set(); #started = new Set(); #atWork = new Map(); #open = new Map(); #seen = [];

  constructor(realTime) {
    this.realTime = realTime; // then the kit finds out by itself which runs are queued
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
  }

  complete = (run, outcome = {}) => {
    this.#seen.push(this.#ended(run, outcome));
  };

  // Shows how a run ended when its promise is settled, which may be before anybody hears of it.
  watch = (run, promise, isCancel = () => false) => {
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

  // Keeps the place of what is settled and not yet heard of. Only `inspect` tells that a promise is settled.
  #look() {
    for (const at of this.#open.values()) {
      if (!at.event && !inspect(at.promise, { depth: 0 }).includes('<pending>')) this.#seen.push((at.event = {}));
    }
  }

  #ended(run, { cancelled = false, error } = {}) {
    this.#accepted.delete(run);
    return { event: 'complete', run, cancelled, ...(error ? { error } : {}) };
  }

  runners() {
    return {
      look: () => {},
      finish: ({ run }) => this.#atWork.get(run)?.finish(),
      fail: ({ run }) => this.#atWork.get(run)?.fail(),
    };
  }

  shown() {
    if (!this.realTime) for (const run of this.#accepted) this.#seen.push({ event: 'enter', run, state: 'queued' });
    if (!this.realTime) this.#accepted.clear();
    return { events: this.#seen.splice(0), at_work: [...this.#atWork.keys()] };
  }

  leave() {
    for (const runner of this.#atWork.values()) runner.finish();
  }
}

async function adapted(make, port) {
  const own = make.prototype ? dispatcher(new make(port.runner, port.complete)) : await make(port);
  const accept = own.accept;
  return { ...own, accept: (asked) => { port.accepts(asked.run); return accept(asked); } };
}

const dispatcher = (it) => ({
  accept: ({ session, run }) => it.submit(session, run),
  cancel: ({ session }) => it.cancel(session),
  clear: ({ session }) => it.clear(session),
});

function say(answer) {
  process.stdout.write(JSON.stringify(answer) + '\n');
}
