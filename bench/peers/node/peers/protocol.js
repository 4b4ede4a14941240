// What a peer and the driver say to each other, in lines over stdin and stdout.
//
// `enqueue` answers with its seconds and `latency` with its milliseconds. `work` says that it is
// ready, begins when a line comes in, says how many jobs its handlers have done whenever that has
// changed, and ends when stdin does.

import { once } from "node:events";
import { performance } from "node:perf_hooks";

// Short beside a drain, and long beside a job.
const SAY_INTERVAL_MS = 5;

// After so long without its job a worker is asked no more.
const PATIENCE_MS = 60_000;

// The payload of every job: sixteen bytes as JSON.
export const PAYLOAD = { key: "bytes." };

let handled = 0;
let started = () => {};

// What every handler does, for one job or for a batch.
export function handle(jobs = 1) {
  started(performance.now());
  handled += jobs;
}

// Runs the command that the arguments name. A peer is made for a URL and has `setup()`,
// `add(jobs)`, `addOne()`, `prepare()`, `begin()` and `end()`: a worker is prepared before the
// clock starts, then begins, and ends when nothing is left.
export async function run(makePeer) {
  const [command, url, ...numbers] = process.argv.slice(2);
  const commands = { setup, enqueue, work, latency };
  await commands[command](await makePeer(url), ...numbers.map(Number));
  process.exit(0);
}

async function setup(peer) {
  await peer.setup();
}

async function enqueue(peer, jobs, call) {
  const begin = performance.now();
  for (let left = jobs; left > 0; left -= call) {
    await peer.add(Math.min(left, call));
  }
  say({ seconds: (performance.now() - begin) / 1e3 });
}

async function work(peer) {
  await peer.prepare();
  say("ready");
  await once(process.stdin, "data");
  const saying = setInterval(sayHandled(), SAY_INTERVAL_MS);
  await peer.begin();
  await once(process.stdin, "end");
  await peer.end();
  clearInterval(saying);
  say(handled);
}

function sayHandled() {
  let said = 0;
  return () => {
    if (handled !== said) {
      said = handled;
      say(said);
    }
  };
}

async function latency(peer, jobs) {
  await peer.prepare();
  await peer.begin();
  // The first is only to see that the worker is there.
  await pickUp(peer);
  const milliseconds = [];
  while (milliseconds.length < jobs) {
    milliseconds.push(await pickUp(peer));
  }
  say({ milliseconds });
}

async function pickUp(peer) {
  const start = new Promise((resolve, reject) => {
    const error = new Error("the worker has not begun a job");
    const patience = setTimeout(reject, PATIENCE_MS, error);
    started = (at) => {
      clearTimeout(patience);
      resolve(at);
    };
  });
  const begin = performance.now();
  await peer.addOne();
  return (await start) - begin;
}

function say(what) {
  process.stdout.write(`${typeof what === "string" ? what : JSON.stringify(what)}\n`);
}
