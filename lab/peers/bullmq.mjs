// BullMQ on the Redis server at --port of 127.0.0.1.
import { Queue, Worker } from "bullmq";
import { countdown, latency, options, throughput } from "./common.mjs";

const CONCURRENCY = 64;

const connection = { host: "127.0.0.1", port: options.port, maxRetriesPerRequest: null };
const name = `bench-${process.pid}`;
// Finished jobs go away at once: what costs it least.
const defaultJobOptions = { removeOnComplete: true };
const queue = new Queue(name, { connection, defaultJobOptions });
await queue.waitUntilReady();
const started = new Map();

async function add(numbers) {
  if (numbers.length === 1) {
    await queue.add("noop", { number: numbers[0] });
  } else {
    await queue.addBulk(numbers.map((number) => ({ name: "noop", data: { number } })));
  }
}

async function work(jobs) {
  const count = countdown(jobs);
  const handler = async (job) => {
    if (options.rate) started.set(job.data.number, performance.now());
  };
  const worker = new Worker(name, handler, { connection, concurrency: CONCURRENCY, autorun: false });
  // Told after Redis has acknowledged the end.
  worker.on("completed", count.done);
  worker.on("error", (error) => {
    throw error;
  });
  await worker.waitUntilReady();
  return { start: () => void worker.run(), ended: count.all, stop: () => worker.close() };
}

await (options.rate ? latency(add, work, started) : throughput(add, work));
const counts = await queue.getJobCounts();
for (const state of ["waiting", "active", "failed", "delayed"]) {
  if (counts[state]) throw new Error(`jobs were left ${state}: ${counts[state]}`);
}
await queue.close();
