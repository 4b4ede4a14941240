// The command line.

import { resolve } from "node:path";
import { parseArgs } from "node:util";

import { names } from "./peers.js";

const HELP = `Measures tidegate and its PostgreSQL peers side by side, on one server, in turn

Usage: bench/peers/run --store URL [OPTIONS]

Options:
  --store URL      The PostgreSQL server; every measurement gets a database of its own there, made
                   new and dropped afterwards, so the role must be allowed to create databases
  --tasks N        Jobs in a drain and in a bulk enqueue [default: 200000]
  --latency N      Jobs whose pick-up is measured [default: 200]
  --processes N    Worker processes in a drain [default: 4]
  --rounds N       Measurements of each, of which the middle one counts [default: 3]
  --only NAME,..   Only these: ${names.join(", ")}
  --tidegate PATH  A tidegate that is built already [default: built from this checkout]
  --json           One JSON object per line instead of a table
  --help           Print help

Example:
  bench/peers/run --store postgres://postgres@127.0.0.1:5432/postgres --tasks 5000 --rounds 1
`;

export function parse(argv) {
  const { values } = parseArgs({
    args: argv,
    options: {
      store: { type: "string" },
      tasks: { type: "string", default: "200000" },
      latency: { type: "string", default: "200" },
      processes: { type: "string", default: "4" },
      rounds: { type: "string", default: "3" },
      only: { type: "string", default: names.join(",") },
      tidegate: { type: "string" },
      json: { type: "boolean", default: false },
      help: { type: "boolean", default: false },
    },
  });
  if (values.help) {
    process.stdout.write(HELP);
    process.exit(0);
  }
  return {
    store: store(values.store),
    tasks: count("tasks", values.tasks),
    latency: count("latency", values.latency),
    processes: count("processes", values.processes),
    rounds: count("rounds", values.rounds),
    only: known(values.only.split(",")),
    tidegate: values.tidegate && resolve(values.tidegate),
    json: values.json,
  };
}

function store(url) {
  if (url === undefined) {
    throw new Error("--store URL is missing; see --help");
  }
  if (!URL.canParse(url) || !/^postgres(ql)?:$/.test(new URL(url).protocol)) {
    throw new Error(`--store ${url}: it must be a PostgreSQL URL`);
  }
  return url;
}

function count(name, text) {
  const number = Number(text);
  if (!Number.isInteger(number) || number < 1) {
    throw new Error(`--${name} ${text}: it must be a number from 1 on`);
  }
  return number;
}

function known(only) {
  const unknown = only.find((name) => !names.includes(name));
  if (unknown !== undefined) {
    throw new Error(`--only ${unknown}: there are ${names.join(", ")}`);
  }
  return names.filter((name) => only.includes(name));
}
