// pg-boss in large batches, woken by notifications. Its handler deletes the jobs, which is how its
// documentation removes them as they are done.

import { PgBoss } from "pg-boss";

import { handle, PAYLOAD, run } from "./protocol.js";

const QUEUE = "noop";

const settings = {
  batchSize: 1000,
  localConcurrency: 2,
  pollingIntervalSeconds: 0.5,
  notifyPollingIntervalSeconds: 0.5,
  burstWhenBatchFull: true,
};

async function makePeer(url) {
  const boss = new PgBoss({
    connectionString: url,
    useListenNotify: true,
    supervise: false,
    schedule: false,
  });
  boss.on("error", (error) => console.error(error));
  await boss.start();
  const work = async (jobs) => {
    handle(jobs.length);
    await boss.deleteJob(QUEUE, jobs.map((job) => job.id));
  };
  return {
    setup: () => boss.createQueue(QUEUE, { notify: true }),
    add: (jobs) => boss.insert(QUEUE, Array(jobs).fill({ data: PAYLOAD })),
    addOne: () => boss.send(QUEUE, PAYLOAD),
    prepare: () => boss.getQueue(QUEUE),
    begin: () => boss.work(QUEUE, settings, work),
    end: () => boss.stop(),
  };
}

await run(makePeer);
