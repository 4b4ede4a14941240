// Round by round, and in each round one after the other, so that a slow spell of the machine does
// not strike one of them only.

import { withDatabase } from "./database.js";
import { say } from "./install.js";
import { scenarios } from "./measure.js";

// Gives the numbers of each round by name and measurement.
export async function measureAll(options, programs) {
  const results = Object.fromEntries(options.only.map((name) => [name, {}]));
  for (let round = 0; round < options.rounds; round++) {
    for (const scenario of Object.keys(scenarios)) {
      for (const name of rotated(options.only, round)) {
        const numbers = await measure(name, scenario, options, programs);
        say(`round ${round + 1}, ${name}: ${told(numbers)}`);
        keep(results[name], numbers);
      }
    }
  }
  return results;
}

// Nobody is always the first.
function rotated(names, by) {
  const at = by % names.length;
  return [...names.slice(at), ...names.slice(0, at)];
}

async function measure(name, scenario, options, programs) {
  try {
    return await withDatabase(options.store, (url, client) =>
      scenarios[scenario](name, programs, options, url, client),
    );
  } catch (error) {
    throw new Error(`${scenario} of ${name}: ${error.message}`);
  }
}

function keep(result, numbers) {
  for (const [measurement, number] of Object.entries(numbers)) {
    (result[measurement] ??= []).push(number);
  }
}

function told(numbers) {
  return Object.entries(numbers)
    .map(([measurement, number]) => `${measurement} ${number.toFixed(2)}`)
    .join(", ");
}
