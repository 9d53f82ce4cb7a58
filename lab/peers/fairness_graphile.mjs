// A workload of `bench fairness` on graphile-worker, which has one queue.
import { Logger, makeWorkerUtils, run as runner } from "graphile-worker";
import pg from "pg";
import { handle, options, run } from "./fairness.mjs";

const CONNECTIONS = 16;
const connectionString = `postgres://bench@127.0.0.1:${options.port}/postgres`;
const pool = () => {
  const pool = new pg.Pool({ connectionString, max: CONNECTIONS });
  pool.on("error", () => {});
  pool.on("connect", (client) => client.on("error", () => {}));
  return pool;
};
const logger = new Logger(() => () => {});
const utils = await makeWorkerUtils({ pgPool: pool(), logger });
await utils.migrate();

const add = ([job, ...others]) =>
  others.length
    ? utils.addJobs([job, ...others].map((payload) => ({ identifier: "sleep", payload })))
    : utils.addJob("sleep", job);
const start = (concurrentJobs) => {
  const taskList = { sleep: ({ number }) => handle(number) };
  const preset = { worker: { concurrentJobs, pollInterval: 1000 } };
  void runner({ preset, pgPool: pool(), taskList, noHandleSignals: true, logger });
};
await run(add, start);
