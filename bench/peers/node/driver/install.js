// Gets the peers from the package registries, builds what has to be built, and says the versions.

import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

import { peers, TIDEGATE } from "./peers.js";

const folder = (path) => fileURLToPath(new URL(path, import.meta.url));

const NODE = folder("../");
const RUST = folder("../../rust/");
const ROOT = folder("../../../../");

// Gives the programs to run.
export function install(options) {
  say("installs the peers for Node");
  // A lock file would name the registry of whoever has made it.
  run("npm", ["install", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error"], NODE);
  const programs = { node: join(NODE, "node_modules/.bin/node") };
  if (options.only.some((name) => peers[name]?.language === "rust")) {
    say("builds the peers in Rust");
    programs.rustPeers = build(RUST, [], "peers");
  }
  if (options.only.includes(TIDEGATE)) {
    programs.tidegate = options.tidegate ?? buildTidegate();
  }
  return programs;
}

function buildTidegate() {
  say("builds tidegate");
  return build(ROOT, ["-p", "tidegate-cli"], "tidegate");
}

// Gives the path of the binary.
function build(path, choice, binary) {
  run("cargo", ["build", "--release", ...choice], path);
  const arguments_ = ["metadata", "--no-deps", "--format-version", "1"];
  return join(JSON.parse(ask("cargo", arguments_, path)).target_directory, "release", binary);
}

// The versions of all that is run, from what was installed.
export function versions(options, programs) {
  const known = {
    [TIDEGATE]: () => tidegateVersion(options, programs),
    "graphile-worker": () => npmVersion("graphile-worker"),
    "graphile-worker-rs": () => crateVersion("graphile_worker"),
    apalis: () => `${crateVersion("apalis")}, apalis-postgres ${crateVersion("apalis-postgres")}`,
    "pg-boss": () => npmVersion("pg-boss"),
  };
  const all = Object.fromEntries(options.only.map((name) => [name, known[name]()]));
  all.node = ask(programs.node, ["--version"], NODE).trim().slice(1);
  all.rustc = ask("rustc", ["--version"], ROOT).split(" ")[1];
  return all;
}

function tidegateVersion(options, programs) {
  const version = ask(programs.tidegate, ["--version"], ROOT).trim().split(" ")[1];
  if (options.tidegate !== undefined) {
    return `${version} (a binary that was named)`;
  }
  const commit = ask("git", ["describe", "--always", "--dirty"], ROOT).trim();
  return `${version} (commit ${commit})`;
}

function npmVersion(name) {
  const path = join(NODE, "node_modules", name, "package.json");
  return JSON.parse(readFileSync(path, "utf8")).version;
}

function crateVersion(name) {
  const lock = readFileSync(join(RUST, "Cargo.lock"), "utf8");
  return lock.match(new RegExp(`^name = "${name}"\nversion = "(.*)"$`, "m"))[1];
}

function run(program, arguments_, cwd) {
  // What it says is talk, and stdout is for the table.
  execute(program, arguments_, { cwd, stdio: ["ignore", process.stderr, process.stderr] });
}

function ask(program, arguments_, cwd) {
  return execute(program, arguments_, { cwd, stdio: ["ignore", "pipe", "inherit"] }).toString();
}

function execute(program, arguments_, options) {
  try {
    return execFileSync(program, arguments_, options);
  } catch (error) {
    const command = [program, ...arguments_].join(" ");
    throw new Error(error.code === "ENOENT" ? `${program} is not there` : `${command} failed`);
  }
}

export function say(line) {
  process.stderr.write(`peers: ${line}\n`);
}
