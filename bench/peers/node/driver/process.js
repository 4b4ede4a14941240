// Programs that are run, and what they say.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";

// Runs a program to its end and gives the last line of its stdout as JSON.
export async function ask(program, ...arguments_) {
  const child = new Child(program, arguments_);
  let last = "null";
  for await (const line of child.lines) {
    last = line;
  }
  await child.ended();
  return JSON.parse(last);
}

export class Child {
  #process;
  #exit;

  constructor([program, ...first], arguments_) {
    this.name = [program, ...first, ...arguments_].join(" ");
    this.#process = spawn(program, [...first, ...arguments_.map(String)], {
      stdio: ["pipe", "pipe", "inherit"],
    });
    this.#exit = once(this.#process, "close");
    // Whoever waits for the end is told.
    this.#exit.catch(() => {});
    // A program that has died hears no more, and its exit code says so.
    this.#process.stdin.on("error", () => {});
    this.lines = createInterface({ input: this.#process.stdout });
  }

  begin() {
    this.#process.stdin.write("go\n");
  }

  end() {
    this.#process.stdin.end();
  }

  kill() {
    this.#process.kill("SIGKILL");
  }

  async ended() {
    const [code, signal] = await this.#exit;
    if (code !== 0) {
      throw new Error(`${this.name} ended with ${signal ?? `code ${code}`}`);
    }
  }
}
