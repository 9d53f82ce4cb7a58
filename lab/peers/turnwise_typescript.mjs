// The TypeScript client and worker of turnwise, on the server at --port of 127.0.0.1.
import { App, Client } from "../../clients/typescript/dist/index.js";
import { Worker } from "../../clients/typescript/dist/worker.js";
import { latency, options, throughput } from "./common.mjs";

const SLOTS = 64;
const server = `http://127.0.0.1:${options.port}`;
const client = new Client({ server });
const app = new App({ type: "noop", client });
const started = new Map();
const noop = app.task({ name: "noop" }, async ({ number }) => {
  if (options.rate) started.set(number, performance.now());
});

async function add(numbers) {
  if (numbers.length === 1) await noop.add({ number: numbers[0] });
  else await noop.addMany(numbers.map((number) => ({ number })));
}

let total = 0;

async function completed() {
  const { counts } = await (await fetch(`${server}/v1/counts?type=noop`)).json();
  return counts.reduce((sum, each) => sum + each.jobs.completed, 0);
}

async function work(jobs) {
  const wanted = (total += jobs);
  const worker = new Worker(app, { client, slots: SLOTS, say: () => {} });
  let running;
  let ended;
  const untilEnded = async () => {
    // As the server has recorded it.
    while ((await completed()) < wanted) await new Promise((resolve) => setTimeout(resolve, 10));
  };
  const start = () => {
    running = worker.run();
    ended = untilEnded();
  };
  const stop = async () => {
    worker.stop();
    await running;
  };
  return {
    start,
    stop,
    get ended() {
      return ended;
    },
  };
}

await (options.rate ? latency(add, work, started) : throughput(add, work));
