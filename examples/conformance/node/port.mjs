// The port of the conformance kit for a promise-based dispatcher: JSON lines over standard input and output.
import { createInterface } from 'node:readline';
import { setImmediate as turnOfTheLoop } from 'node:timers/promises';
import { inspect } from 'node:util';

// `make` is a class with submit, cancel and clear, whose constructor gets a runner and a callback for completions; or a
// function that gets a port and returns the operations of the features that are named, and `close` if there is one. An
// operation of a real-time dispatcher returns a promise, which is over when the dispatcher has taken it in.
export async function serve(make, features = ['cancel', 'clear']) {
  const inRealTime = features.includes('real_time');
  let port, operations;

  for await (const line of createInterface({ input: process.stdin })) {
    const asked = JSON.parse(line);
    const answer = { id: asked.id };
    if (asked.op === 'hello') {
      say({ ...answer, features });
      continue;
    }
    if (asked.op === 'reset') {
      port?.leave();
      await operations?.close?.();
      port = new Port(inRealTime);
      operations = { ...(await adapted(make, port)), ...port.runners() };
    } else if (asked.op === 'residue') {
      answer.residue = await operations.residue();
    } else if (asked.op !== 'look') {
      const calls = [];
      for (const each of asked.op === 'burst' ? asked.ops : [asked]) {
        if (each.after) await new Promise((go) => setTimeout(go, each.after));
        calls.push(operations[each.op](each));
      }
      if (inRealTime) await Promise.all(calls);
    }
    // Every promise that is settled runs its reactions before the loop turns: then nothing more happens.
    await turnOfTheLoop();
    say({ ...answer, ...port.shown() });
  }
}

// What one program sees. A later program has a port of its own, so it hears nothing of an earlier one.
class Port {
  #inRealTime; #accepted = new Set(); #atWork = new Map(); #open = new Map(); #seen = [];

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
  }

  refused = (run) => {
    this.#accepted.delete(run);
    this.#seen.push({ event: 'refused', run });
  };

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

function say(answer) {
  process.stdout.write(JSON.stringify(answer) + '\n');
}
