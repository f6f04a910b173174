// Plays test vectors on a subject in the same process, where no Python runs.
import { readFile } from 'node:fs/promises';

const VERSION = 1;
const TAKING_IN = ['accept', 'interrupt', 'reject'];

// Returns the vectors of a file that `turngate vectors` has written.
export async function readVectors(path) {
  const [heading, ...vectors] = (await readFile(path, 'utf8')).split('\n').filter(Boolean).map((line) => JSON.parse(line));
  if (heading?.vectors !== VERSION) throw new Error(`${path} has vectors of version ${heading?.vectors}, not ${VERSION}`);
  return vectors;
}

// Tells whether a subject has every feature that a vector needs.
export const canPlay = (features, vector) => vector.needs.every((each) => features.includes(each));

// Plays a vector on a fresh dispatcher. Returns null, or the first step at which something else is seen.
export async function playVector(subject, vector) {
  if (subject.features.includes('real_time')) throw new Error('vectors need a subject that comes to rest: not real_time');
  await subject.ask({ op: 'reset' });
  for (const [nth, { may, ...question }] of vector.steps.entries()) {
    let shown = (await subject.ask(question)).events;
    if (entersToo(subject, vector, question) && !shown.some((each) => each.event === 'refused')) {
      shown = [...shown, ...(await subject.ask({ op: 'enter', run: question.run })).events];
    }
    shown = shown.filter(({ event }) => event !== 'given' && (event !== 'wrote' || vector.needs.includes('messages')));
    if (!may.some((should) => isSeen(should, shown))) return { program: vector.program, nth, question, may, shown };
  }
  return null;
}

// Plays all vectors of a file that the subject can play. Returns how many they were, and the differences.
export async function playVectors(subject, path) {
  const vectors = (await readVectors(path)).filter((each) => canPlay(subject.features, each));
  const differences = [];
  for (const vector of vectors) {
    const difference = await playVector(subject, vector);
    if (difference) differences.push(difference);
  }
  await subject.close();
  return { played: vectors.length, differences };
}

// A subject with two phases also plays the vectors of those that have one: a run enters right after its accept.
const entersToo = (subject, vector, question) =>
  TAKING_IN.includes(question.op) && subject.features.includes('two_phase') && !vector.needs.includes('two_phase');

// The same events in the same order; an event may have keys that are not asked for.
const isSeen = (should, shown) =>
  should.length === shown.length &&
  should.every((event, nth) => Object.entries(event).every(([key, value]) => shown[nth][key] === value));
