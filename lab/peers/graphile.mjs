// graphile-worker on the PostgreSQL server at --port of 127.0.0.1.
import { EventEmitter } from "node:events";
import { Logger, makeWorkerUtils, run } from "graphile-worker";
import pg from "pg";
import { countdown, latency, options, throughput } from "./common.mjs";

// Of each of the two pools: the fastest of 8, 16 and 64.
const CONNECTIONS = 16;
const CONCURRENCY = 64;

const connectionString = `postgres://bench@127.0.0.1:${options.port}/postgres`;
const pgPool = new pg.Pool({ connectionString, max: CONNECTIONS });
// A pool of its own, so that workers do not stand in the submitters' line.
const workerPool = new pg.Pool({ connectionString, max: CONNECTIONS });
for (const pool of [pgPool, workerPool]) {
  pool.on("error", () => {});
  pool.on("connect", (client) => client.on("error", () => {}));
}
const quiet = new Logger(() => () => {});
const utils = await makeWorkerUtils({ pgPool, logger: quiet });
await utils.migrate();
const started = new Map();

async function add(numbers) {
  if (numbers.length === 1) {
    await utils.addJob("noop", { number: numbers[0] });
  } else {
    await utils.addJobs(numbers.map((number) => ({ identifier: "noop", payload: { number } })));
  }
}

async function work(jobs) {
  const count = countdown(jobs);
  const events = new EventEmitter();
  events.setMaxListeners(0);
  const noop = async ({ number }) => {
    if (options.rate) started.set(number, performance.now());
    count.done();
  };
  const preset = {
    worker: {
      concurrentJobs: CONCURRENCY,
      pollInterval: 1000,
      // Its documentation's settings for high throughput: jobs fetched and ended in batches.
      localQueue: { size: 500 },
      completeJobBatchDelay: 0,
      failJobBatchDelay: 0,
    },
  };
  let runner;
  const start = () => {
    runner = run({ preset, pgPool: workerPool, taskList: { noop }, noHandleSignals: true, logger: quiet, events });
  };
  // A finished job's row is deleted: when none is left, every end is recorded.
  const ended = count.all.then(async () => {
    for (;;) {
      const { rows } = await pgPool.query("select 1 from graphile_worker._private_jobs limit 1");
      if (rows.length === 0) return;
      await new Promise((resume) => setTimeout(resume, 2));
    }
  });
  return { start, ended, stop: async () => (await runner).stop() };
}

await (options.rate ? latency(add, work, started) : throughput(add, work));
await utils.release();
await pgPool.end();
await workerPool.end();
