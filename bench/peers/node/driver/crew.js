// Worker processes of a peer that drain a queue together.

import { once } from "node:events";
import { performance } from "node:perf_hooks";
import { setTimeout as sleep } from "node:timers/promises";

import { Child } from "./process.js";

// After so long without a job done there will be none any more.
const PATIENCE_MS = 60_000;

const ASK_INTERVAL_MS = 2;

// Gives the seconds from the start of the work until the database shows no unfinished job.
export async function drain(program, processes, url, jobs, isDone) {
  const crew = Array.from({ length: processes }, () => new Child(program, ["work", url]));
  try {
    const seconds = await Promise.race([time(crew, jobs, isDone), ...crew.map(death)]);
    crew.forEach((child) => child.end());
    await Promise.all(crew.map((child) => child.ended()));
    return seconds;
  } finally {
    crew.forEach((child) => child.kill());
  }
}

async function time(crew, jobs, isDone) {
  await Promise.all(crew.map((child) => once(child.lines, "line")));
  const handled = counter(crew);
  const begin = performance.now();
  crew.forEach((child) => child.begin());
  // Asking the database earlier would cost those who are measured.
  const complaint = () => `its handlers did ${handled()} of ${jobs} jobs`;
  await patiently(() => handled() >= jobs, complaint, handled);
  await patiently(isDone, () => "its handlers did all jobs, but the database has unfinished ones");
  return (performance.now() - begin) / 1e3;
}

async function death(child) {
  await child.ended();
  throw new Error(`${child.name} ended before its work was done`);
}

// Adds up what the processes say they have done.
function counter(crew) {
  const done = crew.map(() => 0);
  crew.forEach((child, at) => child.lines.on("line", (line) => (done[at] = Number(line))));
  return () => done.reduce((a, b) => a + b);
}

// Waits for a condition as long as there is progress.
async function patiently(condition, complaint, progress = () => 0) {
  let [seen, since] = [progress(), performance.now()];
  while (!(await condition())) {
    await sleep(ASK_INTERVAL_MS);
    if (progress() !== seen) {
      [seen, since] = [progress(), performance.now()];
    } else if (performance.now() - since > PATIENCE_MS) {
      throw new Error(complaint());
    }
  }
}
