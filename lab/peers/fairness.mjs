// What the peers' programs of `bench fairness` share. They get `--port`, `--workload FILE` and `--out FILE`. A workload has streams: what each tenant
// adds, and when. Written out is a line per job, `STREAM ADDED STARTED ENDED`, in ms since the beginning, `-` for what did not happen.
import { readFileSync, writeFileSync } from "node:fs";
import { parseArgs } from "node:util";

const BATCH = 1000;
const TICK_MS = 5;
const text = { type: "string" };
export const { values: options } = parseArgs({ options: { port: text, workload: text, out: text, queues: text } });
export const workload = JSON.parse(readFileSync(options.workload, "utf8"));
const { streams, slots, seconds } = workload;

// By job: its stream, and its times.
const of = [];
const added = [];
const started = [];
const ended = [];
// By stream: the number of jobs that were added and have not ended.
const open = streams.map(() => 0);
let begin;
const now = () => (begin === undefined ? 0 : performance.now() - begin);

/** What a handler does. Run times are from half to one and a half times the average: `workload.rs` computes the same. */
export async function handle(number) {
  started[number] = now();
  const ms = streams[of[number]].run_ms * (0.5 + ((number * 0.6180339887498949) % 1));
  await new Promise((resume) => setTimeout(resume, ms));
  ended[number] = now();
  open[of[number]] -= 1;
}

/** Runs the workload. `add(jobs)` adds jobs, each `{ number, tenant }`; `start(slots)` starts a worker. Ends the process. */
export async function run(add, start) {
  const put = async (indices) => {
    const jobs = indices.map((stream) => {
      of.push(stream);
      open[stream] += 1;
      return { number: of.length - 1, tenant: streams[stream].tenant };
    });
    await add(jobs);
    const at = now();
    for (const { number } of jobs) added[number] = at;
  };
  let batch = [];
  for (const [n, { preload }] of streams.entries()) {
    for (let i = 0; i < preload; i += 1) {
      batch.push(n);
      if (batch.length === BATCH) {
        await put(batch);
        batch = [];
      }
    }
  }
  if (batch.length) await put(batch);
  begin = performance.now();
  start(slots);
  for (const [n, { burst, burst_s, rate, keep }] of streams.entries()) {
    if (burst) {
      setTimeout(async () => {
        for (let left = burst; left > 0; left -= BATCH) await put(Array(Math.min(BATCH, left)).fill(n));
      }, burst_s * 1000);
    }
    if (rate) {
      let count = 0;
      setInterval(() => {
        for (; count < (now() / 1000) * rate; count += 1) put([n]);
      }, TICK_MS);
    }
    if (keep) {
      let adding = false;
      setInterval(async () => {
        const missing = keep - open[n];
        if (adding || missing < Math.min(keep / 4, BATCH)) return;
        adding = true;
        await put(Array(Math.min(BATCH, missing)).fill(n));
        adding = false;
      }, TICK_MS);
    }
  }
  await new Promise((resume) => setTimeout(resume, seconds * 1000));
  const end = seconds * 1000;
  const time = (ms) => (ms === undefined || ms > end ? "-" : ms.toFixed(3));
  const lines = of.map((stream, n) => `${stream} ${time(added[n])} ${time(started[n])} ${time(ended[n])}`);
  writeFileSync(options.out, `${lines.join("\n")}\n`);
  // The server ends with the benchmark, so nothing is stopped cleanly.
  process.exit(0);
}
