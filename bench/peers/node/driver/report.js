// The numbers of all rounds, as a table or as JSON.

import { measurements } from "./measure.js";
import { peers, TIDEGATE } from "./peers.js";

// What tidegate has to show beside the best peer: that many times as much, or less.
const WANTED = { drain: 2.5, enqueue: 2, latency_p50: 1 };

// `results` has the numbers of each round by name and measurement.
export function summarize(results) {
  return Object.entries(results).flatMap(([name, byMeasurement]) =>
    Object.entries(byMeasurement).map(([measurement, rounds]) => ({
      name,
      measurement,
      unit: measurements[measurement].unit,
      median: median(rounds),
      min: Math.min(...rounds),
      max: Math.max(...rounds),
      rounds,
    })),
  );
}

function median(numbers) {
  const sorted = numbers.toSorted((a, b) => a - b);
  const half = sorted.length / 2;
  return (sorted[Math.ceil(half) - 1] + sorted[Math.floor(half)]) / 2;
}

export function json(summary, options, versions) {
  const { tasks, latency, processes, rounds } = options;
  const comparisons = compare(summary);
  return [{ versions, tasks, latency, processes, rounds }, ...summary, ...comparisons]
    .map((object) => `${JSON.stringify(object)}\n`)
    .join("");
}

export function table(summary, options, versions) {
  const columns = Object.keys(measurements);
  const heads = columns.map((name) => `${name.replace("_", " ")}, ${measurements[name].unit}`);
  const rows = options.only.map((name) => [
    name,
    ...columns.map((column) => cell(find(summary, name, column))),
  ]);
  return [
    `${options.tasks} jobs, ${options.latency} for latency, ${options.processes} processes`,
    `median of ${options.rounds} (min..max)`,
    "",
    ...align([["", ...heads], ...rows]),
    "",
    ...compare(summary).map(sentence),
    "",
    "Completed jobs:",
    ...options.only.map((name) => `  ${name}: ${retention(name)}`),
    "",
    "Versions:",
    ...Object.entries(versions).map(([name, version]) => `  ${name} ${version}`),
    "",
  ].join("\n");
}

function find(summary, name, measurement) {
  return summary.find((line) => line.name === name && line.measurement === measurement);
}

function cell({ measurement, median, min, max }) {
  const digits = measurements[measurement].more ? 0 : 2;
  const settings = { minimumFractionDigits: digits, maximumFractionDigits: digits };
  const text = (number) => number.toLocaleString("en-US", settings);
  return `${text(median)} (${text(min)}..${text(max)})`;
}

function align(rows) {
  const widths = rows[0].map((_, at) => Math.max(...rows.map((row) => row[at].length)));
  return rows.map((row) =>
    row
      .map((text, at) => (at === 0 ? text.padEnd(widths[at]) : text.padStart(widths[at])))
      .join("  "),
  );
}

function retention(name) {
  return name === TIDEGATE ? "removes a task as it completes" : peers[name].retention;
}

// Tidegate beside the best peer, where both were measured.
function compare(summary) {
  return Object.entries(WANTED).flatMap(([measurement, wanted]) => {
    const ours = find(summary, TIDEGATE, measurement);
    const best = bestPeer(summary, measurement);
    if (ours === undefined || best === undefined) {
      return [];
    }
    const ratio = ours.median / best.median;
    const reached = measurements[measurement].more ? ratio >= wanted : ratio < wanted;
    return [{ comparison: measurement, best: best.name, ratio, wanted, reached }];
  });
}

function bestPeer(summary, measurement) {
  const sorted = summary
    .filter((line) => line.name !== TIDEGATE && line.measurement === measurement)
    .sort((a, b) => a.median - b.median);
  return measurements[measurement].more ? sorted.at(-1) : sorted[0];
}

function sentence({ comparison, best, ratio, wanted, reached }) {
  const goal = measurements[comparison].more ? `${wanted} or more` : `less than ${wanted}`;
  const name = comparison.replace("_", " ");
  const verdict = reached ? "reached" : "missed";
  const ratioText = `tidegate / ${best}, the best peer = ${ratio.toFixed(2)}`;
  return `${name}: ${ratioText} (wanted ${goal}: ${verdict})`;
}
