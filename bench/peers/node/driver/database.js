// Databases that are there for one measurement.

import pg from "pg";

const PREFIX = "tidegate_peers";

// Lets `use` have a new database, by its URL and a connection to it, and drops it afterwards.
export async function withDatabase(server, use) {
  const name = `${PREFIX}_${process.pid}`;
  await query(server, `create database ${name}`);
  try {
    const url = new URL(server);
    url.pathname = `/${name}`;
    return await withClient(url.href, (client) => use(url.href, client));
  } finally {
    await query(server, `drop database ${name} with (force)`);
  }
}

export async function query(url, sql) {
  return withClient(url, async (client) => (await client.query(sql)).rows);
}

async function withClient(connectionString, use) {
  const client = new pg.Client({ connectionString });
  await client.connect();
  try {
    return await use(client);
  } finally {
    await client.end();
  }
}
