// A workload of `bench fairness` on BullMQ: with one queue, or with `--queues tenant` a queue for each tenant, from which the program takes jobs in
// turns.
import { Queue, Worker } from "bullmq";
import { handle, options, run, workload } from "./fairness.mjs";

const connection = { host: "127.0.0.1", port: Number(options.port), maxRetriesPerRequest: null };
// Finished jobs go away at once: what costs it least.
const defaultJobOptions = { removeOnComplete: true };

function single() {
  const queue = new Queue("fairness", { connection, defaultJobOptions });
  const add = ([job, ...others]) =>
    others.length
      ? queue.addBulk([job, ...others].map((data) => ({ name: "sleep", data })))
      : queue.add("sleep", job);
  const start = (concurrency) => {
    const worker = new Worker("fairness", ({ data }) => handle(data.number), { connection, concurrency });
    worker.on("error", (error) => {
      throw error;
    });
  };
  return run(add, start);
}

function perTenant() {
  // By tenant: its queue, a worker that is asked for jobs, and the number of jobs that wait.
  const tenants = new Map();
  for (const { tenant } of workload.streams) tenants.set(tenant, { waiting: 0 });
  const of = (tenant) => {
    const entry = tenants.get(tenant);
    entry.queue ??= new Queue(tenant, { connection, defaultJobOptions });
    return entry;
  };
  // The tenants with waiting jobs, in the order of their turns.
  const turns = [];
  const idle = [];
  const add = async (jobs) => {
    const byTenant = new Map();
    for (const job of jobs) {
      if (!byTenant.has(job.tenant)) byTenant.set(job.tenant, []);
      byTenant.get(job.tenant).push(job);
    }
    await Promise.all(
      [...byTenant].map(async ([tenant, own]) => {
        const entry = of(tenant);
        await entry.queue.addBulk(own.map((data) => ({ name: "sleep", data })));
        if (entry.waiting === 0) turns.push(tenant);
        entry.waiting += own.length;
      }),
    );
    for (let n = 0; n < jobs.length && idle.length; n += 1) idle.shift()();
  };
  const slot = async (n) => {
    const token = `slot-${n}`;
    for (;;) {
      const tenant = turns.shift();
      if (tenant === undefined) {
        await new Promise((resume) => idle.push(resume));
        continue;
      }
      const entry = of(tenant);
      entry.waiting -= 1;
      if (entry.waiting > 0) turns.push(tenant);
      entry.worker ??= new Worker(tenant, undefined, { connection, skipStalledCheck: true });
      const job = await entry.worker.getNextJob(token, { block: false });
      if (!job) throw new Error(`${tenant} has no job`);
      await handle(job.data.number);
      await job.moveToCompleted(true, token, false);
    }
  };
  const start = (slots) => {
    for (let n = 0; n < slots; n += 1) slot(n);
  };
  return run(add, start);
}

await (options.queues === "tenant" ? perTenant() : single());
