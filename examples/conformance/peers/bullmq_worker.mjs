// bullmq: a queue and a worker with concurrency one per session, on a Redis of our own. A caller waits with
// job.waitUntilFinished(). A cancel removes the jobs that wait, and cancels the active one, whose processor then
// throws UnrecoverableError, as the documentation says.
// Check it with: turngate conform -- node examples/conformance/peers/bullmq_worker.mjs
import { spawn } from 'node:child_process';
import { mkdtempSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { Queue, QueueEvents, UnrecoverableError, Worker } from 'bullmq';
import IORedis from 'ioredis';
import { serve } from '../../../ports/node/index.mjs';

const port = await new Promise((found) => {
  const free = createServer().listen(0, '127.0.0.1', () => { found(free.address().port); free.close(); });
});
const folder = mkdtempSync(`${tmpdir()}/turngate-peer-`);
const redis = spawn('redis-server', ['--port', port, '--bind', '127.0.0.1', '--save', '', '--dir', folder], { stdio: 'ignore' });
process.on('exit', () => redis.kill());
const connection = () => new IORedis({ host: '127.0.0.1', port, maxRetriesPerRequest: null });
let programs = 0;

await serve(({ runner, watch }) => {
  const sessions = new Map(), program = ++programs;
  let inTurn = Promise.resolve(); // The calls of a caller come in order.

  const open = async (session) => {
    const name = `${session}-${program}`;
    const process = (job, _token, signal) => runner(job.data.run, signal).catch((error) => {
      throw signal.aborted ? new UnrecoverableError('cancelled') : error;
    });
    const at = { jobs: new Map(), covered: new Set(), queue: new Queue(name, { connection: connection() }) };
    at.events = new QueueEvents(name, { connection: connection() });
    at.worker = new Worker(name, process, { connection: connection(), concurrency: 1 });
    await Promise.all([at.queue, at.events, at.worker].map((each) => each.waitUntilReady()));
    sessions.set(session, at);
    return at;
  };

  return {
    accept: ({ session, run }) => (inTurn = inTurn.then(async () => {
      const at = sessions.get(session) ?? (await open(session));
      const job = await at.queue.add('turn', { run });
      at.jobs.set(run, job);
      const done = job.waitUntilFinished(at.events).finally(() => at.jobs.delete(run));
      watch(run, done, () => at.covered.has(run));
    })),
    close() {
      for (const { worker, events, queue } of sessions.values()) {
        for (const each of [worker, events, queue]) each.on('error', () => {}).close(true).catch(() => {});
      }
    },
    cancel: ({ session }) => (inTurn = inTurn.then(async () => {
      const at = sessions.get(session);
      for (const run of at?.jobs.keys() ?? []) at.covered.add(run);
      for (const job of (await at?.queue.getWaiting()) ?? []) await job.remove();
      at?.worker.cancelAllJobs('cancelled');
    })),
  };
}, ['cancel', 'real_time']);
