// The tasks and the client that the conformance suite drives. `turnwise-worker driver.mjs` runs the tasks, `node driver.mjs` the client.
import { existsSync, writeSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { App, Client, Fail, JobFailed, RetryAfter, Snooze } from "turnwise-client";

const TYPE = "suite";
const ME = process.env.SUITE_NAME;
const POLL_MS = 20;
export const app = new App({ type: TYPE });

/** Blocks: a process that is killed has said what it has done. */
function say(line) {
  const bytes = Buffer.from(`${JSON.stringify(line)}\n`);
  for (let at = 0; at < bytes.length; ) {
    try {
      at += writeSync(1, bytes, at);
    } catch (error) {
      if (error.code !== "EAGAIN") throw error;
      block(POLL_MS);
    }
  }
}

const isOpen = (gate) => existsSync(join(process.env.SUITE_GATES, gate));
const block = (ms) => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);

/** Whether this run does this. */
function applies(action, context) {
  return (
    (action.at ?? ME) === ME && (action.attempt ?? context.attempt) === context.attempt && (!action.fresh || context.lastReport === undefined)
  );
}

function thrown(action) {
  const { reason = "why not", seconds = 0 } = action;
  if (action.raise === "Fail") return new Fail(reason);
  if (action.raise === "Snooze") return new Snooze(seconds);
  if (action.raise === "RetryAfter") return new RetryAfter(seconds, reason);
  return new RangeError(reason);
}

async function perform(action, context) {
  if ("wait" in action) while (!isOpen(action.wait)) await sleep(POLL_MS, undefined, { signal: context.signal });
  if ("deaf" in action) while (!isOpen(action.deaf)) await sleep(POLL_MS);
  if ("block" in action) while (!isOpen(action.block)) block(POLL_MS);
  if ("steps" in action) await Promise.all(action.steps.map((step) => context.step(step, () => say({ event: "step", job: context.id, step }))));
  if ("log" in action) for (let n = 0; n < (action.times ?? 1); n += 1) context.log(action.log.replace("%", n));
  if ("progress" in action) context.progress(action.progress);
  if ("raise" in action) throw thrown(action);
}

app.task({ name: "script", max_attempts: 5, backoff: 0.05 }, async ({ script }, context) => {
  const left = context.deadline && (context.deadline.getTime() - Date.now()) / 1000;
  say({ event: "start", job: context.id, attempt: context.attempt, left, last: context.lastReport });
  context.signal.addEventListener("abort", () => say({ event: "stop", job: context.id }));
  try {
    for (const action of script.filter((action) => applies(action, context))) {
      if ("bytes" in action) return new Uint8Array(action.bytes).fill(0x89);
      if ("return" in action) {
        const value = action.return === "$me" ? ME : action.return;
        return "times" in action ? value.repeat(action.times) : value;
      }
      await perform(action, context);
    }
  } finally {
    say({ event: "over", job: context.id });
  }
});

/** The terms of a job, as the API states them. */
function wire({ delay, timeout, after, ...terms }) {
  return {
    ...terms,
    ...(delay === undefined ? {} : { delay_ms: delay * 1000 }),
    ...(timeout === undefined ? {} : { timeout_ms: timeout * 1000 }),
    ...(after === undefined ? {} : { after }),
  };
}

async function collect(items, enough = () => false) {
  const found = [];
  for await (const item of items) {
    found.push(item);
    if (enough(item)) break;
  }
  return found;
}

async function call(client, what, given) {
  const { id } = given;
  if (what === "add") {
    const handle = await client.add(TYPE, given.options, wire(given.terms));
    return { id: handle.id, added: handle.added.added };
  }
  if (what === "add_many") {
    const handles = await client.addMany(given.many.map((options) => ({ type: TYPE, options, ...wire(given.terms) })));
    return handles.map((handle) => handle.id);
  }
  if (what === "events") {
    // The suite's last event is the end of the job that it names.
    const last = (event) => event.id === given.last && ["completed", "failed", "cancelled"].includes(event.event);
    return (await collect(client.events({ type: TYPE, since: "oldest" }), last)).map((event) => [event.event, event.id]);
  }
  if (what === "logs") return (await collect(client.logs(TYPE, id, { follow: true }))).map((line) => line.message);
  if (what === "retry") return (await client.retry(TYPE, id)).retried;
  if (what === "wait") return (await client.wait(TYPE, id, { timeout: given.timeout })).state;
  if (what === "result") {
    const value = await client.result(TYPE, id, { timeout: given.timeout });
    return value instanceof Uint8Array ? { bytes: Buffer.from(value).toString("base64") } : value;
  }
  return client[what](TYPE, id);
}

async function answer(client, line) {
  try {
    say({ n: line.n, value: await call(client, line.call, line) });
  } catch (error) {
    say({ n: line.n, error: error instanceof JobFailed ? "job_failed" : (error.error ?? "bug"), text: String(error.stack) });
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const client = new Client({ retryFor: Number(process.env.SUITE_RETRY_FOR) });
  createInterface({ input: process.stdin }).on("line", (line) => void answer(client, JSON.parse(line)));
}
