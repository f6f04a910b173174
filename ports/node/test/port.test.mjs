import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import test from 'node:test';
import { Subject } from 'turngate-port';
import { Right } from './dispatchers.mjs';

const plain = ({ events }) => events.map(({ event, run, ...rest }) => [event, run, ...Object.values(rest)].join(' '));

test('a queued run becomes active when the turn before it fails', async () => {
  const subject = new Subject(Right);
  await subject.ask({ op: 'reset' });
  assert.deepEqual(plain(await subject.ask({ op: 'accept', session: 's', run: 'a' })), ['enter a active']);
  assert.deepEqual(plain(await subject.ask({ op: 'accept', session: 's', run: 'b' })), ['enter b queued']);
  const answer = await subject.ask({ id: 7, op: 'fail', run: 'a' });
  assert.equal(answer.id, 7);
  assert.deepEqual(plain(answer), ['complete a false no luck', 'handoff b']);
  assert.deepEqual(answer.at_work, ['b']);
});

test('a burst is called without a wait in between', async () => {
  const subject = new Subject(Right, ['cancel', 'clear', 'bursts']);
  await subject.ask({ op: 'reset' });
  const ops = [{ op: 'accept', session: 's', run: 'a' }, { op: 'cancel', session: 's' }];
  assert.deepEqual(plain(await subject.ask({ op: 'burst', ops })), ['enter a active', 'complete a true']);
});

test('a promise that is settled counts as complete before the next turn starts', async () => {
  // The lock is passed on before the caller of the first hears that its turn has ended.
  const make = (port) => {
    let last = Promise.resolve();
    return {
      accept: ({ run }) => {
        const mine = last.then(() => port.runner(run));
        last = mine.catch(() => {});
        port.watch(run, mine);
      },
    };
  };
  const subject = new Subject(make, []);
  await subject.ask({ op: 'reset' });
  await subject.ask({ op: 'accept', session: 's', run: 'a' });
  await subject.ask({ op: 'accept', session: 's', run: 'b' });
  assert.deepEqual(plain(await subject.ask({ op: 'finish', run: 'a' })), ['complete a false', 'handoff b']);
});

const lane = (cancel) => (port) => {
  let abort;
  return {
    accept: ({ run }) => {
      abort = new AbortController();
      port.watch(run, port.runner(run, abort.signal));
    },
    cancel: () => (abort?.abort(), cancel()),
  };
};

test('a promise that is rejected with an AbortError shows a run that was cancelled', async () => {
  const subject = new Subject(lane(() => {}), ['cancel']);
  await subject.ask({ op: 'reset' });
  await subject.ask({ op: 'accept', session: 's', run: 'a' });
  assert.deepEqual(plain(await subject.ask({ op: 'cancel', session: 's' })), ['complete a true']);
});

test('a cancel that never returns hangs, at the latest when nothing is in flight', async () => {
  const subject = new Subject(lane(() => new Promise(() => {})), ['cancel']);
  await subject.ask({ op: 'reset' });
  await subject.ask({ op: 'accept', session: 's', run: 'a' });
  await assert.rejects(subject.ask({ op: 'cancel', session: 's' }), /cancel hangs/);
  await subject.ask({ op: 'reset' });
  assert.deepEqual(plain(await subject.ask({ op: 'accept', session: 's', run: 'b' })), ['enter b active']);
});

test('a program does not hear of the one before it', async () => {
  const subject = new Subject(Right);
  await subject.ask({ op: 'reset' });
  await subject.ask({ op: 'accept', session: 's', run: 'a' });
  assert.deepEqual((await subject.ask({ op: 'reset' })).events, []);
  assert.deepEqual(plain(await subject.ask({ op: 'accept', session: 's', run: 'b' })), ['enter b active']);
});

test('an operation that the subject does not have is an error that names it', async () => {
  const subject = new Subject(Right);
  await subject.ask({ op: 'reset' });
  await assert.rejects(subject.ask({ op: 'fold', run: 'a' }), /no operation fold/);
});

test('served, it answers each line with one line', async () => {
  const script = `
    import { serve } from 'turngate-port';
    import { Right } from '${new URL('./dispatchers.mjs', import.meta.url)}';
    await serve(Right);
  `;
  const child = spawn(process.execPath, ['--input-type=module', '--eval', script], {
    cwd: new URL('..', import.meta.url),
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  const ended = new Promise((resolve) => child.once('exit', resolve));
  const asked = [{ id: 1, op: 'hello', port: 1 }, { id: 2, op: 'reset' }, { id: 3, op: 'accept', session: 's', run: 'a' }];
  child.stdin.end(asked.map((each) => JSON.stringify(each) + '\n').join(''));
  const answers = [];
  for await (const line of createInterface({ input: child.stdout })) answers.push(JSON.parse(line));
  assert.equal(await ended, 0);
  assert.deepEqual(answers.map((each) => each.id), [1, 2, 3]);
  assert.deepEqual(answers[0].features, ['cancel', 'clear']);
  assert.deepEqual(plain(answers[2]), ['enter a active']);
});
