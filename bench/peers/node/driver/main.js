// Installs, measures in turn, and prints.

import { install, say, versions } from "./install.js";
import { parse } from "./options.js";

async function main() {
  const options = parse(process.argv.slice(2));
  const programs = install(options);
  // These need what has just been installed.
  const { query } = await import("./database.js");
  const { measureAll } = await import("./rounds.js");
  const { json, summarize, table } = await import("./report.js");
  const [{ server_version }] = await query(options.store, "show server_version");
  const all = { ...versions(options, programs), postgresql: server_version };
  const summary = summarize(await measureAll(options, programs));
  process.stdout.write((options.json ? json : table)(summary, options, all));
}

try {
  await main();
} catch (error) {
  say(`error: ${error.message}`);
  process.exitCode = 1;
}
