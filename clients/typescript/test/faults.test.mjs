// The command's arguments. What a worker does when something breaks is in `clients/conformance`.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { test } from "node:test";

const CLI = new URL("../dist/cli.js", import.meta.url).pathname;
const JOBS = new URL("fixtures/jobs.mjs", import.meta.url).pathname;

/** Runs `turnwise-worker`. */
const command = (args) => spawnSync(process.execPath, [CLI, JOBS, ...args], { encoding: "utf8" });

test("the command tells what is wrong with its arguments", () => {
  const help = command(["--help"]);
  assert.equal(help.status, 0);
  assert.match(help.stdout, /turnwise-worker \[MODULE\]/);
  for (const args of [["--slots", "none"], ["another"], ["--bad"], ["--grace", ""]]) {
    const wrong = command(args);
    assert.equal(wrong.status, 2, args.join(" "));
    assert.match(wrong.stderr, /^turnwise-worker: /);
  }
});
