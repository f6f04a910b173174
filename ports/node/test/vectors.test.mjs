import assert from 'node:assert/strict';
import { mkdtemp, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'node:test';
import { Subject, canPlay, playVector, playVectors, readVectors } from 'turngate-port';
import { KeepsItsQueue, Right, Stranded } from './dispatchers.mjs';

const MINIMAL = new URL('../../../vectors/minimal.jsonl', import.meta.url);

test('a right dispatcher shows what every vector allows', async () => {
  const { played, differences } = await playVectors(new Subject(Right), MINIMAL);
  assert.ok(played > 5);
  assert.deepEqual(differences, []);
});

for (const [Wrong, design] of [[Stranded, 'stranded-queue'], [KeepsItsQueue, 'keeps-the-queue']]) {
  test(`${Wrong.name} differs where a vector refutes ${design}`, async () => {
    const { differences } = await playVectors(new Subject(Wrong), MINIMAL);
    const vectors = await readVectors(MINIMAL);
    const refuting = vectors.filter((each) => canPlay(['cancel', 'clear'], each) && design in each.refutes);
    assert.ok(refuting.length > 0);
    const found = new Set(differences.map((each) => each.program));
    for (const each of refuting) assert.ok(found.has(each.program), each.program);
  });
}

test('a difference says which step, what is allowed and what is seen', async () => {
  const vector = (await readVectors(MINIMAL)).find((each) => each.program === 'accept a, accept b, accept c, fail a');
  const difference = await playVector(new Subject(Stranded), vector);
  assert.equal(difference.nth, 3);
  assert.deepEqual(difference.shown.map((each) => each.event), ['complete']);
  assert.deepEqual(difference.may, vector.steps[3].may);
});

test('a vector for one phase is entered as well by a subject with two', async () => {
  const make = (port) => {
    const it = new Right(port.runner, port.complete);
    const sessions = new Map();
    return {
      accept: ({ session, run }) => void sessions.set(run, session),
      enter: ({ run }) => it.submit(sessions.get(run), run),
      cancel: ({ session }) => it.cancel(session),
      clear: ({ session }) => it.clear(session),
    };
  };
  // The port shows a run as queued that has not started; a subject with two phases says itself when a run enters.
  const asked = [];
  const subject = new Subject(make, ['two_phase']);
  const ask = subject.ask.bind(subject);
  subject.ask = (question) => (asked.push(question.op), ask(question));
  const vector = (await readVectors(MINIMAL)).find((each) => each.needs.length === 0);
  await playVector(subject, vector);
  assert.deepEqual(asked.slice(0, 3), ['reset', 'accept', 'enter']);
});

test('a subject in real time is refused', async () => {
  const [vector] = await readVectors(MINIMAL);
  await assert.rejects(playVector(new Subject(Right, ['real_time']), vector), /comes to rest/);
});

test('vectors of another version are refused', async () => {
  const path = join(await mkdtemp(join(tmpdir(), 'vectors-')), 'v.jsonl');
  await writeFile(path, '{"vectors": 2}\n');
  await assert.rejects(readVectors(path), /version 2, not 1/);
});
