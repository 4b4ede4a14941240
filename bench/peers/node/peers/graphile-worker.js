// graphile-worker with the settings of its page on performance.

import { Logger, makeWorkerUtils, run as runWorker } from "graphile-worker";
import pg from "pg";

import { handle, PAYLOAD, run } from "./protocol.js";

const quiet = new Logger(() => () => {});

const settings = {
  concurrentJobs: 24,
  maxPoolSize: 25,
  localQueue: { size: 500 },
  completeJobBatchDelay: 0,
  failJobBatchDelay: 0,
};

async function makePeer(url) {
  const utils = await makeWorkerUtils({ connectionString: url, logger: quiet });
  const pool = new pg.Pool({ connectionString: url, max: settings.maxPoolSize });
  pool.on("error", (error) => console.error(error));
  pool.on("connect", (client) => client.on("error", (error) => console.error(error)));
  let runner;
  return {
    setup: () => utils.migrate(),
    add: (jobs) => utils.addJobs(Array(jobs).fill({ identifier: "noop", payload: PAYLOAD })),
    addOne: () => utils.addJob("noop", PAYLOAD),
    prepare: () => pool.query("select"),
    begin: async () => {
      runner = await runWorker({
        pgPool: pool,
        logger: quiet,
        preset: { worker: settings },
        taskList: { noop: () => handle() },
        noHandleSignals: true,
      });
    },
    end: () => runner.stop(),
  };
}

await run(makePeer);
