// What the peers' programs share: their arguments, the work of the submitters, and the lines that the benchmark reads:
//   begin PHASE             before a phase
//   end PHASE JOBS SECONDS  after it
//   latency P50 P99 JOBS    in microseconds
import { parseArgs } from "node:util";

/** `--port`, `--jobs`, `--submitters`, `--batch`, and `--rate` (jobs/s; then latency is measured instead of throughput). */
export const options = (() => {
  const text = { type: "string" };
  const { values } = parseArgs({ options: { port: text, jobs: text, submitters: text, batch: text, rate: text } });
  return Object.fromEntries(Object.entries(values).map(([name, value]) => [name, Number(value)]));
})();

/** Runs one phase, and tells how long it took. */
export async function phase(name, jobs, run) {
  console.log(`begin ${name}`);
  const start = process.hrtime.bigint();
  await run();
  const seconds = Number(process.hrtime.bigint() - start) / 1e9;
  console.log(`end ${name} ${jobs} ${seconds}`);
}

/** Shares the numbers `from..from + jobs` out among submitters, `batch` at a time; each waits for its acknowledgement. */
export async function submit(from, { jobs, submitters, batch }, add) {
  let next = from;
  const end = from + jobs;
  const submitter = async () => {
    while (next < end) {
      const first = next;
      next = Math.min(next + batch, end);
      await add(Array.from({ length: next - first }, (_, n) => first + n));
    }
  };
  await Promise.all(Array.from({ length: submitters }, submitter));
}

/** A promise that is kept once `done` was called `count` times. */
export function countdown(count) {
  let left = count;
  let resolve;
  const all = new Promise((kept) => (resolve = kept));
  const done = () => {
    left -= 1;
    if (left === 0) resolve();
  };
  return { all, done };
}

/** A tenth as many jobs to warm up; then the three phases of throughput: add all, then process all; then both at once. `work(jobs)` starts a worker and returns
 *  `{ ended, stop }`: a promise for the recorded end of that many jobs. */
export async function throughput(add, work) {
  const { jobs } = options;
  const warmUp = Math.floor(jobs / 10);
  let worker = await work(warmUp);
  worker.start();
  await submit(0, { ...options, jobs: warmUp }, add);
  await worker.ended;
  await worker.stop();
  await phase("add", jobs, () => submit(0, options, add));
  worker = await work(jobs);
  await phase("process", jobs, async () => {
    worker.start();
    await worker.ended;
  });
  await worker.stop();
  worker = await work(jobs);
  worker.start();
  await phase("both", jobs, async () => {
    await submit(jobs, options, add);
    await worker.ended;
  });
  await worker.stop();
}

/** Adds `options.rate` jobs a second, and tells how long after its acknowledgement a job's handler started.
 *  `started` maps a job's number to the time at which its handler started. */
export async function latency(add, work, started) {
  const { jobs, rate } = options;
  const acknowledged = new Map();
  const worker = await work(jobs);
  worker.start();
  const adding = [];
  const begin = performance.now();
  for (let n = 0; n < jobs; ) {
    const due = Math.min(jobs, Math.floor(((performance.now() - begin) / 1000) * rate));
    for (; n < due; n += 1) {
      const number = n;
      adding.push(add([number]).then(() => acknowledged.set(number, performance.now())));
    }
    await new Promise((resume) => setTimeout(resume, 1));
  }
  await Promise.all(adding);
  await worker.ended;
  await worker.stop();
  const waits = [...acknowledged].map(([n, at]) => Math.max(0, (started.get(n) - at) * 1000)).sort((a, b) => a - b);
  const at = (share) => waits[Math.floor((waits.length - 1) * share)].toFixed(0);
  console.log(`latency ${at(0.5)} ${at(0.99)} ${waits.length}`);
}
