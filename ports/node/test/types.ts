// What `make ports` gives to the TypeScript compiler: the types say what the package does.
import { Subject, canPlay, playVectors, readVectors, serve, type Answer, type Port } from 'turngate-port';

class Lock {
  constructor(private runner: (run: string, signal?: AbortSignal) => Promise<string>, private done: Port['complete']) {}
  async submit(_session: string, run: string) {
    await this.runner(run);
    this.done(run, { error: 'no luck' });
  }
  cancel() {}
  clear() {}
}

const subject = new Subject(Lock, ['cancel', 'clear']);
const answer: Promise<Answer> = subject.ask({ op: 'accept', session: 's', run: 'a' });
const served: Promise<void> = serve((port) => ({ accept: ({ run }) => port.watch(run, port.runner(run)) }), []);
const checked = playVectors(subject, 'minimal.jsonl').then(({ played, differences }) => `${played} ${differences[0]?.shown[0]?.event}`);
const some = readVectors('minimal.jsonl').then((vectors) => vectors.filter((each) => canPlay(['cancel'], each)));
// @ts-expect-error a subject needs something to make dispatchers of
new Subject();
// @ts-expect-error an outcome has no such key
new Subject((port: Port) => ({ accept: () => port.complete('a', { canceled: true }) }));
export default [answer, served, checked, some];
