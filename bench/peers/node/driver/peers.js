// Who is measured. Each of them is a program in `node/peers` or `rust/src`, but for tidegate, which
// measures itself. `jobs` counts the rows of unfinished jobs, `left` asks if there is one.

import { fileURLToPath } from "node:url";

const GRAPHILE = {
  jobs: "select count(*)::int as count from graphile_worker._private_jobs",
  left: "select from graphile_worker._private_jobs limit 1",
  retention: "deletes a job as it completes",
};

export const TIDEGATE = "tidegate";

export const peers = {
  "graphile-worker": { ...GRAPHILE, language: "node" },
  "graphile-worker-rs": { ...GRAPHILE, language: "rust" },
  apalis: {
    jobs: "select count(*)::int as count from apalis.jobs where status <> 'Done'",
    left: "select from apalis.jobs where status <> 'Done' limit 1",
    retention: "keeps completed jobs: it has no way to remove them, and is spared the work",
    language: "rust",
  },
  "pg-boss": {
    jobs: "select count(*)::int as count from pgboss.job where state < 'completed'",
    left: "select from pgboss.job where state < 'completed' limit 1",
    retention: "its handler deletes each batch of jobs, as its documentation shows",
    language: "node",
  },
};

export const names = [TIDEGATE, ...Object.keys(peers)];

// The program and the first arguments of a peer.
export function program(name, programs) {
  if (peers[name].language === "rust") {
    return [programs.rustPeers, name];
  }
  return [programs.node, fileURLToPath(new URL(`../peers/${name}.js`, import.meta.url))];
}
