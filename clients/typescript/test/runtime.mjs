// One program for every runtime: it adds jobs, runs them, reads their results, and stops a worker. Without a test runner.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { App, JobFailed } from "turnwise-client";
import { Relay, add, createTable } from "turnwise-client/outbox";
import { TestServer, collect, sleep, until, working } from "./server.mjs";

const CLI = new URL("../dist/cli.js", import.meta.url).pathname;
const JOBS = new URL("fixtures/jobs.mjs", import.meta.url).pathname;
const server = await TestServer.start();
const client = server.client();

async function tasks() {
  const app = new App({ type: "tasks", client });
  let stopped;
  const sum = app.task({ name: "sum" }, async ({ numbers }, context) => {
    context.log("adds", { numbers });
    return context.step("sum", () => numbers.reduce((a, b) => a + b, 0));
  });
  const bytes = app.task({ name: "bytes" }, () => new Uint8Array(300_000).fill(7));
  const fails = app.task({ name: "fails", max_attempts: 1 }, () => {
    throw new RangeError("the test", { cause: new Error("deep") });
  });
  const long = app.task({ name: "long" }, async (_, { signal }) => {
    await sleep(60_000, undefined, { signal }).catch(() => {});
    stopped = signal.reason.stopCause;
    signal.throwIfAborted();
  });
  await working(app, { client, slots: 4 }, async () => {
    const handles = await sum.addMany(Array.from({ length: 200 }, (_, n) => ({ numbers: [n, 1] })));
    const results = await Promise.all(handles.map((handle) => handle.result({ timeout: 60 })));
    assert.deepEqual(results, handles.map((_, n) => n + 1));
    const lines = await collect(handles[7].logs());
    assert.deepEqual(lines.map(({ message, fields }) => [message, fields]), [["adds", { numbers: [7, 1] }]]);
    assert.deepEqual(await (await bytes.add({})).result({ timeout: 60 }), new Uint8Array(300_000).fill(7));
    await assert.rejects((await fails.add({})).result({ timeout: 60 }), (error) => {
      assert.match(error.job.errors[0].trace, /the test[^]*caused by: Error: deep/);
      return error instanceof JobFailed && error.errorClass.startsWith("RangeError");
    });
    const handle = await long.add({});
    const events = collect(handle.events());
    await until(async () => (await handle.status()).state === "running");
    await handle.cancel();
    assert.equal((await events).at(-1).job.state, "cancelled");
    assert.equal(stopped, "cancelled");
  });
}

async function command(jobs) {
  const notes = join(server.folder, "notes");
  const env = { ...process.env, TEST_TYPE: jobs, TEST_NAME: "w", TEST_NOTES: notes, TURNWISE_SERVER: server.url };
  const program = process.versions.deno ? [process.execPath, "run", "--allow-all", CLI] : [process.execPath, CLI];
  const worker = spawn(program[0], [...program.slice(1), JOBS, "--grace", "30"], { env, stdio: ["ignore", "ignore", "inherit"] });
  process.once("exit", () => worker.kill("SIGKILL"));
  const ended = new Promise((resolve) => worker.once("exit", (code, signal) => resolve(code ?? signal)));
  const handle = await client.add(jobs, { ms: 500 }, { task: "short" });
  await until(() => existsSync(notes), 60);
  // The job ends in the grace.
  // After `worker.kill`, Deno would report the signal in place of the exit code.
  process.kill(worker.pid, "SIGTERM");
  assert.equal(await ended, 0);
  assert.equal(await handle.result({ timeout: 60 }), "done");
  assert.equal(readFileSync(notes, "utf8"), "w begins\n");
}

async function outbox({ DatabaseSync }) {
  const app = new App({ type: "outbox", client });
  const task = app.task({ name: "task" }, ({ n }) => n);
  const file = join(server.folder, "app.db");
  const database = new DatabaseSync(file);
  await createTable(database);
  database.exec("BEGIN");
  add(database, task, { n: 1 });
  database.exec("ROLLBACK");
  const handle = add(database, task, { n: 2 });
  const relay = new Relay(() => new DatabaseSync(file), client);
  assert.deepEqual([await relay.step(), (await relay.stats()).waiting], [1, 0]);
  await relay.close();
  database.close();
  await working(app, { client }, async () => assert.equal(await handle.result({ timeout: 60 }), 2));
  assert.equal((await collect(client.jobs({ type: "outbox" }))).length, 1);
}

try {
  await tasks();
  await command("commands");
  // Node 20 has no SQLite.
  const sqlite = await import("node:sqlite").catch(() => undefined);
  if (sqlite) await outbox(sqlite);
  console.log(`ok${sqlite ? ", with an outbox" : ""}`);
} finally {
  await server.stop();
}
process.exit(0);
