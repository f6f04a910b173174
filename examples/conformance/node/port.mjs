// The port of the conformance kit for a promise-based dispatcher: JSON lines over standard input and output.
import { createInterface } from 'node:readline';
import { setImmediate as turnOfTheLoop } from 'node:timers/promises';

export async function serve(Dispatcher) {
  let dispatcher, runners, entered, seen;

  // The work of a turn: shows that it has started, then waits to be told how it ends.
  const runner = (run, signal) => {
    seen.push(entered.has(run) ? { event: 'handoff', run } : { event: 'enter', run, state: 'active' });
    entered.add(run);
    return new Promise((finish, fail) => {
      runners.set(run, { finish, fail: () => fail(new Error('no luck')) });
      signal.addEventListener('abort', () => fail(signal.reason), { once: true });
    });
  };

  const onComplete = (run, { cancelled = false, error } = {}) => {
    seen.push({ event: 'complete', run, cancelled, ...(error ? { error } : {}) });
  };

  const operations = {
    reset: () => {
      [runners, entered, seen] = [new Map(), new Set(), []];
      dispatcher = new Dispatcher(runner, onComplete);
    },
    accept: ({ session, run }) => dispatcher.submit(session, run),
    cancel: ({ session }) => dispatcher.cancel(session),
    clear: ({ session }) => dispatcher.clear(session),
    finish: ({ run }) => runners.get(run)?.finish('text'),
    fail: ({ run }) => runners.get(run)?.fail(),
  };

  for await (const line of createInterface({ input: process.stdin })) {
    const asked = JSON.parse(line);
    if (asked.op === 'hello') {
      say({ id: asked.id, features: ['cancel', 'clear'] });
      continue;
    }
    operations[asked.op](asked);
    // Every promise that is settled runs its reactions before the loop turns: then nothing more happens.
    await turnOfTheLoop();
    if (asked.op === 'accept' && !entered.has(asked.run)) {
      entered.add(asked.run);
      seen.push({ event: 'enter', run: asked.run, state: 'queued' });
    }
    say({ id: asked.id, events: seen.splice(0) });
  }
}

function say(answer) {
  process.stdout.write(JSON.stringify(answer) + '\n');
}
