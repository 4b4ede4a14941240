// The measurements, of tidegate and of each peer. All give numbers by their name.

import { drain } from "./crew.js";
import { peers, program, TIDEGATE } from "./peers.js";
import { ask } from "./process.js";

// What is given, in which unit, and whether more is better.
export const measurements = {
  drain: { unit: "jobs/s", more: true },
  enqueue: { unit: "jobs/s", more: true },
  latency_p50: { unit: "ms", more: false },
  latency_p99: { unit: "ms", more: false },
};

// Jobs in one call of a bulk enqueue.
const CALL = 5000;
const CALL_TIDEGATE = 1000;

// Tasks in one transaction of a drain.
const BATCH_TIDEGATE = 500;

const TIDEGATE_JOBS = "select count(*)::int as count from tidegate.tasks";

// Each is given a name, the programs, the sizes, and a new database by its URL and a connection.
export const scenarios = { drain: measureDrain, enqueue: measureEnqueue, latency: measureLatency };

async function measureDrain(name, programs, { tasks, processes }, url, client) {
  if (name === TIDEGATE) {
    const more = ["--processes", processes, "--batch", BATCH_TIDEGATE];
    const line = await bench(programs, url, "throughput", tasks, more);
    await expectJobs(client, TIDEGATE_JOBS, 0);
    return { drain: line.tasks_per_s };
  }
  const { jobs, left } = peers[name];
  const peer = program(name, programs);
  await enqueue(peer, url, tasks);
  await expectJobs(client, jobs, tasks);
  // As autovacuum would have done by itself after a while.
  await client.query("analyze");
  const isDone = async () => (await client.query(left)).rowCount === 0;
  return { drain: tasks / (await drain(peer, processes, url, tasks, isDone)) };
}

async function measureEnqueue(name, programs, { tasks }, url, client) {
  if (name === TIDEGATE) {
    const line = await bench(programs, url, "enqueue", tasks, ["--batch", CALL_TIDEGATE]);
    await expectJobs(client, TIDEGATE_JOBS, tasks);
    return { enqueue: line.tasks_per_s };
  }
  const { seconds } = await enqueue(program(name, programs), url, tasks);
  await expectJobs(client, peers[name].jobs, tasks);
  return { enqueue: tasks / seconds };
}

async function measureLatency(name, programs, { latency }, url) {
  if (name === TIDEGATE) {
    const { extra } = await ask([programs.tidegate], ...benchArguments(url, "latency", latency));
    return { latency_p50: extra.p50_ms, latency_p99: extra.p99_ms };
  }
  const peer = program(name, programs);
  await ask(peer, "setup", url);
  const { milliseconds } = await ask(peer, "latency", url, latency);
  milliseconds.sort((a, b) => a - b);
  const percentile = (percent) => milliseconds[Math.floor((milliseconds.length * percent) / 100)];
  return { latency_p50: percentile(50), latency_p99: percentile(99) };
}

async function enqueue(peer, url, tasks) {
  await ask(peer, "setup", url);
  return ask(peer, "enqueue", url, tasks, CALL);
}

async function bench(programs, url, scenario, tasks, more) {
  const arguments_ = benchArguments(url, scenario, tasks);
  return ask([programs.tidegate], ...arguments_, "--rounds", 1, ...more);
}

function benchArguments(url, scenario, tasks) {
  return ["bench", scenario, "--json", "--store", url, "--tasks", tasks];
}

async function expectJobs(client, sql, expected) {
  const { count } = (await client.query(sql)).rows[0];
  if (count !== expected) {
    throw new Error(`${count} unfinished jobs are in the database, not ${expected}`);
  }
}
