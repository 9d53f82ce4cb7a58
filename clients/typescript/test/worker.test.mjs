import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { after, before, test } from "node:test";
import { App, Fail, JobFailed, RetryAfter, Snooze } from "turnwise-client";
import { TestServer, collect, sleep, steps, until, working } from "./server.mjs";

let server;
let client;
let types = 0;
before(async () => {
  server = await TestServer.start();
  client = server.client();
});
after(() => server.stop());

const newApp = () => new App({ type: `type${(types += 1)}`, client });

test("a task runs with its input, and its result arrives", async () => {
  const app = newApp();
  const sum = app.task({ name: "sum" }, ({ numbers }) => ({ sum: numbers.reduce((a, b) => a + b, 0) }));
  const nothing = app.task({ name: "nothing" }, () => {});
  await working(app, { client }, async () => {
    assert.deepEqual(await (await sum.add({ numbers: [1, 2, 3] })).result({ timeout: 10 }), { sum: 6 });
    assert.equal(await (await nothing.add()).result({ timeout: 10 }), null);
    const handles = await sum.addMany(Array.from({ length: 500 }, (_, n) => ({ numbers: [n, 1] })));
    const results = await Promise.all(handles.map((handle) => handle.result({ timeout: 30 })));
    assert.deepEqual(results.map((result) => result.sum), Array.from({ length: 500 }, (_, n) => n + 1));
  });
});

test("results of 1 MB, of bytes and of other texts arrive as they were, and larger ones fail with the server's reason", async () => {
  const app = newApp();
  const text = "é".repeat(500_000 - 10);
  const bytes = new Uint8Array(randomBytes(700_000));
  const large = app.task({ name: "large" }, () => text);
  const binary = app.task({ name: "binary" }, () => bytes);
  const tooLarge = app.task({ name: "too-large" }, () => "x".repeat(2_000_000));
  const enormous = app.task({ name: "enormous" }, () => "x".repeat(13_000_000));
  const odd = app.task({ name: "odd", max_attempts: 1 }, () => 10n);
  const half = app.task({ name: "half", max_attempts: 1 }, () => "\ud800");
  await working(app, { client, slots: 4 }, async () => {
    assert.equal(await (await large.add({})).result({ timeout: 20 }), text);
    assert.deepEqual(await (await binary.add({})).result({ timeout: 20 }), bytes);
    const failed = (task) => task.add({}).then((handle) => handle.result({ timeout: 20 })).then(
      () => assert.fail("it did not fail"),
      (error) => (assert.ok(error instanceof JobFailed, String(error)), error.reason),
    );
    assert.match(await failed(tooLarge), /result/);
    assert.match(await failed(enormous), /its result was refused: too_large/);
    assert.match(await failed(odd), /BigInt/);
    const outcome = await (await half.add({})).wait({ timeout: 20 });
    assert.ok(["completed", "failed"].includes(outcome.state));
    // The worker still works.
    assert.equal((await (await large.add({})).result({ timeout: 20 })).length, text.length);
  });
});

test("a crash is retried with its backoff, and a Fail is not", async () => {
  const app = newApp();
  const crashes = app.task({ name: "crashes", max_attempts: 3, backoff: [0.05, 0.1] }, (_, context) => {
    if (context.attempt < 3) throw new Error("not yet", { cause: new Error("deep") });
    return context.attempt;
  });
  const fails = app.task({ name: "fails", max_attempts: 5 }, () => {
    throw new Fail("never", { errorClass: "Hopeless" });
  });
  await working(app, { client }, async () => {
    const handle = await crashes.add({});
    assert.equal(await handle.result({ timeout: 10 }), 3);
    const job = await handle.status();
    assert.equal(steps(job, "crashed"), 2);
    assert.match(job.errors[0].trace, /not yet[^]*caused by: Error: deep/);
    await assert.rejects((await fails.add({})).result({ timeout: 10 }), (error) => {
      assert.deepEqual([error.reason.endsWith("never"), error.job.attempts], [true, 1]);
      return error.errorClass.startsWith("Hopeless");
    });
  });
});

test("Snooze is no attempt, and RetryAfter states the wait", async () => {
  const app = newApp();
  const times = { snooze: [], until: [], retry: [] };
  const runs = (name, error) => app.task({ name, max_attempts: 3, backoff: 60 }, (_, context) => {
    times[name].push(performance.now());
    if (times[name].length < 2) throw error();
    return context.attempt;
  });
  const snooze = runs("snooze", () => new Snooze(0.3));
  const later = runs("until", () => new Snooze(new Date(Date.now() + 300)));
  const retry = runs("retry", () => new RetryAfter(0.3, "429", { pauseRate: true }));
  await working(app, { client }, async () => {
    const handles = await Promise.all([snooze.add({}), later.add({}), retry.add({})]);
    assert.deepEqual(await Promise.all(handles.map((handle) => handle.result({ timeout: 10 }))), [1, 1, 2]);
    assert.equal((await handles[0].status()).snoozes, 1);
  });
  for (const [name, [first, second]] of Object.entries(times)) assert.ok(second - first > 250 && second - first < 5000, name);
});

test("a cancelled job hears of it by its signal, and is cancelled", async () => {
  const app = newApp();
  let reason;
  let cancelled;
  const long = app.task({ name: "long" }, async (_, context) => {
    await sleep(60_000, undefined, { signal: context.signal }).catch(() => {});
    reason = context.signal.reason;
    cancelled = context.cancelled;
    context.signal.throwIfAborted();
  });
  const stubborn = app.task({ name: "stubborn" }, async (_, context) => {
    await new Promise((resolve) => context.signal.addEventListener("abort", resolve));
    return "done anyway";
  });
  await working(app, { client }, async () => {
    const handles = [await long.add({}), await stubborn.add({})];
    for (const handle of handles) await until(async () => (await handle.status()).state === "running");
    for (const handle of handles) assert.equal(await handle.cancel(), "running");
    assert.equal((await handles[0].wait({ timeout: 10 })).state, "cancelled");
    assert.equal(reason.stopCause, "cancelled");
    assert.equal(cancelled, true);
    assert.equal(await handles[1].result({ timeout: 10 }), "done anyway");
  });
});

test("a run ends at its deadline, and that is a crash", async () => {
  const app = newApp();
  let left;
  const slow = app.task({ name: "slow", timeout: 0.4, max_attempts: 1 }, async (_, context) => {
    left = context.deadline.getTime() - Date.now();
    await sleep(60_000, undefined, { signal: context.signal });
  });
  await working(app, { client }, async () => {
    const job = await (await slow.add({})).wait({ timeout: 10 });
    assert.equal(job.state, "failed");
    assert.match(job.reason, /time/i);
    assert.ok(left > 300 && left <= 400);
  });
});

test("steps are remembered across attempts, with the progress beside them", async () => {
  const app = newApp();
  const ran = [];
  const reports = [];
  const work = app.task({ name: "work", max_attempts: 3, backoff: 0.05 }, async (_, context) => {
    reports.push(context.lastReport);
    const step = (name, value) => context.step(name, async () => (ran.push(name), value));
    const [a, b] = await Promise.all([step("a", { n: 1 }), step("b", undefined)]);
    context.progress({ attempt: context.attempt });
    if (context.attempt === 1) throw new Error("after two steps");
    const c = await step("c", [a, b]);
    if (context.attempt === 2) throw new Error("after three steps");
    await assert.rejects(step("c", 1), /two steps with the name c/);
    return c;
  });
  await working(app, { client }, async () => {
    const handle = await work.add({});
    assert.deepEqual(await handle.result({ timeout: 10 }), [{ n: 1 }, null]);
  });
  assert.deepEqual(ran, ["a", "b", "c"]);
  assert.deepEqual(reports, [undefined, { attempt: 1 }, { attempt: 2 }]);
});

test("a report that is too large does not cost the result", async () => {
  const app = newApp();
  const report = app.task({ name: "report" }, async (_, context) => {
    context.progress("x".repeat(50_000));
    context.log("a line");
    return 1;
  });
  await working(app, { client }, async (_, lines) => {
    assert.equal(await (await report.add({})).result({ timeout: 10 }), 1);
    assert.ok(lines.some((line) => line.includes("refused")));
  });
});

test("a job gets the results of the jobs before it, small and large", async () => {
  const app = newApp();
  const make = app.task({ name: "make" }, ({ size }) => "y".repeat(size));
  const read = app.task({ name: "read" }, async (_, context) => {
    assert.equal(context.inputs.small.result, "yyy");
    assert.equal(context.inputs.large.result, undefined);
    return [await context.input("small"), (await context.input("large")).length];
  });
  await client.addMany([await make.job({ size: 3 }, { id: "small" }), await make.job({ size: 300_000 }, { id: "large" })]);
  const inputs = { small: { job: `${app.type}/small` }, large: { job: `${app.type}/large` } };
  const handle = await read.add({}, { inputs });
  await working(app, { client }, async () => {
    assert.deepEqual(await handle.result({ timeout: 10 }), ["yyy", 300_000]);
  });
});

test("inputs and results are validated by a Standard Schema, and a wrong one is not retried", async () => {
  const app = newApp();
  const schema = (check, message) => ({
    "~standard": { version: 1, vendor: "test", validate: async (value) => (check(value) ? { value: { ...value, parsed: true } } : { issues: [{ message, path: ["to"] }] }) },
  });
  const options = { name: "mail", input: schema((value) => typeof value.to === "string", "must be text"), output: schema((value) => value.ok, "not ok") };
  const mail = app.task(options, ({ to, parsed }) => ({ ok: to !== "bad", parsed }));
  await assert.rejects(mail.add({ to: 7 }), (error) => error.error === "invalid_input" && /mail[^]*to: must be text/.test(error.message));
  assert.deepEqual(await collect(client.jobs({ type: app.type })), []);
  await working(app, { client }, async () => {
    assert.deepEqual(await (await mail.add({ to: "a" })).result({ timeout: 10 }), { ok: true, parsed: true });
    const reasons = [await mail.add({ to: "bad" }), await client.add(app.type, { to: 7 }, { task: "mail" })].map((handle) => handle.wait({ timeout: 10 }));
    const [result, input] = await Promise.all(reasons);
    assert.deepEqual([result.state, input.state, input.attempts], ["failed", "failed", 1]);
    assert.match(result.reason, /the result is not valid: to: not ok/);
    assert.match(input.reason, /the input is not valid: to: must be text/);
  });
});

test("middleware is around adds and runs: it may change jobs, send headers, and see errors", async () => {
  const seen = [];
  const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
  const named = (name) => ({
    async add({ jobs, headers }, next) {
      seen.push(`${name} adds ${jobs.length}`);
      if (name === "inner") headers.traceparent = traceparent;
      for (const job of jobs) job.tags = [...(job.tags ?? []), name];
      await next();
      seen.push(`${name} added`);
    },
    async run(context, next) {
      seen.push(`${name} runs ${context.task}`);
      try {
        return `${name}(${await next()})`;
      } catch (error) {
        seen.push(`${name} saw ${error.message}`);
        throw error;
      }
    },
  });
  const middleware = [named("outer"), {}, named("inner")];
  const app = new App({ type: `type${(types += 1)}`, client: server.client({ middleware }), middleware });
  const works = app.task({ name: "works" }, (_, context) => context.traceparent.slice(3, 35));
  const fails = app.task({ name: "fails", max_attempts: 1 }, () => {
    throw new Fail("the test");
  });
  const handle = await works.add({});
  assert.deepEqual(seen.splice(0), ["outer adds 1", "inner adds 1", "inner added", "outer added"]);
  const many = await fails.addMany([{}, {}]);
  assert.deepEqual(seen.splice(0), ["outer adds 2", "inner adds 2", "inner added", "outer added"]);
  assert.deepEqual((await handle.status()).tags, ["inner", "outer"]);
  await many[1].cancel();
  await working(app, { client, slots: 1 }, async () => {
    assert.equal(await handle.result({ timeout: 20 }), `outer(inner(${traceparent.slice(3, 35)}))`);
    assert.equal((await many[0].wait({ timeout: 20 })).state, "failed");
  });
  const ends = ["outer runs fails", "inner runs fails", "inner saw the test", "outer saw the test"];
  assert.deepEqual(seen, ["outer runs works", "inner runs works", ...ends]);
  const silent = server.client({ middleware: [{ add: async () => {} }] });
  await assert.rejects(silent.add("silent"), /no job was added/);
  await assert.rejects(silent.addMany([{ type: "silent" }]), /no job was added/);
});

test("a worker runs no more jobs than it has slots, and uses them all", async () => {
  const app = newApp();
  let now = 0;
  const most = { all: 0, few: 0 };
  const run = (name, slots) => {
    let mine = 0;
    return app.task({ name, ...(slots ? { slots } : {}) }, async () => {
      now += 1;
      mine += 1;
      most.all = Math.max(most.all, now);
      if (slots) most.few = Math.max(most.few, mine);
      await sleep(30);
      now -= 1;
      mine -= 1;
    });
  };
  const all = run("all");
  const few = run("few", 2);
  const handles = [...(await all.addMany(Array(40).fill({}))), ...(await few.addMany(Array(10).fill({})))];
  await working(app, { client, slots: 5 }, async () => {
    for (const handle of handles) assert.equal((await handle.wait({ timeout: 20 })).state, "completed");
  });
  assert.deepEqual(most, { all: 5, few: 2 });
});

test("locks are taken and given back while a job runs", async () => {
  const locked = await TestServer.start();
  const client = locked.client();
  const app = new App({ type: "locks", client });
  const order = [];
  const hold = app.task({ name: "hold", locks: { node: { exclusive: "unknown" } } }, async (input, context) => {
    await context.locks.acquire([{ level: "node", name: "web1", mode: "exclusive" }]);
    order.push(`${input.n} has it`);
    await sleep(200);
    order.push(`${input.n} gives it back`);
    await context.locks.release("node", "web1");
    await sleep(300);
  });
  try {
    const handles = await hold.addMany([{ n: 1 }, { n: 2 }]);
    await working(app, { client }, async () => {
      for (const handle of handles) assert.equal((await handle.wait({ timeout: 20 })).state, "completed");
    });
    const [first, second] = order[0].startsWith("1") ? [1, 2] : [2, 1];
    assert.deepEqual(order, [`${first} has it`, `${first} gives it back`, `${second} has it`, `${second} gives it back`]);
  } finally {
    await locked.stop();
  }
});
