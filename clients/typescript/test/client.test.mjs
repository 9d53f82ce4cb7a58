import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { inspect } from "node:util";
import { Client, Fail, JobFailed, App, TurnwiseError } from "turnwise-client";
import { Proxy, TestServer, collect, freePort, sleep, steps, until, working } from "./server.mjs";

let server;
let client;
before(async () => {
  server = await TestServer.start();
  client = server.client();
});
after(() => server.stop());

test("a job is added, listed, cancelled, retried and removed", async () => {
  const handle = await client.add("plain", { a: 1 }, { id: "one", tags: ["x"], priority: -3 });
  assert.equal(handle.added.added, "queued");
  const job = await client.job("plain", "one");
  assert.deepEqual([job.state, job.options, job.tags, job.priority], ["pending", { a: 1 }, ["x"], -3]);
  const again = await client.add("plain", { a: 2 }, { id: "one" });
  assert.equal(again.added.added, "exists");
  assert.deepEqual((await collect(client.jobs({ tag: "x" }))).map((one) => one.id), ["one"]);
  assert.equal(await handle.cancel(), "cancelled");
  await assert.rejects(handle.result(), (error) => error instanceof JobFailed && error.job.state === "cancelled");
  assert.equal((await handle.retry()).retried, true);
  assert.equal((await handle.status()).state, "pending");
  assert.equal(await handle.remove(), true);
  await assert.rejects(handle.status(), (error) => error instanceof TurnwiseError && error.error === "not_found" && error.status === 404 && error.hint !== "");
});

test("many jobs are added in their order, in several requests", async () => {
  const jobs = Array.from({ length: 2300 }, (_, n) => ({ type: "many", options: { n } }));
  const handles = await client.addMany(jobs);
  assert.equal(handles.length, 2300);
  assert.equal(new Set(handles.map(({ id }) => id)).size, 2300);
  assert.deepEqual((await handles[2299].status()).options, { n: 2299 });
  const listed = await collect(client.jobs({ type: "many" }));
  assert.equal(listed.length, 2300);
});

test("jobs of one request refer to each other, or none is added", async () => {
  const [first, second] = await client.addMany(
    [
      { type: "graph", id: "a", name: "first" },
      { type: "graph", id: "b", after: [{ name: "first" }] },
    ],
    { whole: true },
  );
  assert.deepEqual([first.added.added, second.added.added], ["queued", "blocked"]);
  const wrong = client.addMany([{ type: "graph", id: "c" }, { type: "graph", id: "d", priority: 99 }]);
  await assert.rejects(wrong, (error) => error.error === "bad_request");
  await assert.rejects(client.job("graph", "c"), (error) => error.error === "not_found");
});

test("adds at the same time share requests, and each has its own answer", async () => {
  const proxy = await Proxy.start(server.port);
  const through = new Client({ server: proxy.url });
  const numbers = Array.from({ length: 150 }, (_, n) => n);
  let lost = 0;
  proxy.fault = () => (lost++ < 1 ? "drop-answer" : undefined);
  const handles = await Promise.all(numbers.map((n) => through.add("together", { n })));
  assert.equal(proxy.requests.length, 3);
  assert.deepEqual((await handles[120].status()).options, { n: 120 });
  const wrong = await Promise.allSettled(numbers.slice(0, 20).map((n) => through.add("apart", { n }, n === 7 ? { priority: 99 } : {})));
  assert.deepEqual(wrong.flatMap(({ status }, n) => (status === "rejected" ? [n] : [])), [7]);
  assert.equal(wrong[7].reason.error, "bad_request");
  assert.equal((await collect(client.jobs({ type: "apart" }))).length, 19);
  await proxy.stop();
});

test("a tenant that may add no more holds up no other", async () => {
  const own = await TestServer.start("[limits]\nwaiting_jobs = 1\n");
  try {
    // Operators have no such limit.
    const token = await own.token(["client:*"], await own.token(["admin"]));
    const client = new Client({ server: own.url, token, retryFor: 30 });
    await client.add("site", {}, { tenant: "full" });
    let isOver = false;
    const oneMore = client.add("site", {}, { tenant: "full" }).catch(() => {}).finally(() => (isOver = true));
    const others = [1, 2, 3, 4].map((n) => client.add("site", {}, { tenant: `other${n}` }));
    await Promise.race([Promise.all(others), sleep(15_000, undefined, { ref: false }).then(() => assert.fail("the others wait"))]);
    assert.equal(isOver, false);
    // It may add one more as soon as the other one is gone.
    for (const job of await collect(client.jobs({ tenant: "full" }))) await client.remove("site", job.id);
    await oneMore;
  } finally {
    await own.stop();
  }
});

test("requests are not repeated for longer than retryFor, and not after a refusal", async () => {
  const began = performance.now();
  const nobody = new Client({ server: `http://127.0.0.1:${await freePort()}`, retryFor: 0.3 });
  await assert.rejects(nobody.job("a", "b"), (error) => error.error === "no_answer" && !error.mayHaveWorked);
  assert.ok(performance.now() - began < 3000);
  const proxy = await Proxy.start(server.port);
  await assert.rejects(new Client({ server: proxy.url }).add("bad type!", {}), (error) => error.error === "bad_request");
  assert.equal(proxy.requests.length, 1);
  await proxy.stop();
});

test("the next server is asked when one does not answer", async () => {
  const both = new Client({ server: `http://127.0.0.1:${await freePort()},${server.url}` });
  const handle = await both.add("failover", {});
  assert.equal(handle.added.added, "queued");
  assert.equal(both.server, server.url);
});

test("a signal ends a wait at once, and a timeout ends it in time", async () => {
  const handle = await client.add("nobody", {});
  const stop = new AbortController();
  setTimeout(() => stop.abort(new Error("enough")), 100);
  const began = performance.now();
  await assert.rejects(handle.wait({ signal: stop.signal }), /enough/);
  await assert.rejects(handle.result({ timeout: 0.2 }), (error) => error.error === "timeout");
  assert.ok(performance.now() - began < 3000);
});

test("names that would change the path are refused", async () => {
  for (const id of ["", ".", ".."]) await assert.rejects(client.handle("plain", id).remove(), (error) => error.error === "invalid_input");
  const odd = await client.add("plain", {}, { id: "a/b?c#d%2e ü" });
  assert.equal((await odd.status()).id, "a/b?c#d%2e ü");
});

test("secrets are in no text", async () => {
  const secret = "very-secret-token";
  const shown = [];
  const client = new Client({ server: `http://name:hidden-password@127.0.0.1:${server.port}`, token: secret, retryFor: 0.1 });
  shown.push(inspect(client, { depth: 20, showHidden: true }), JSON.stringify(client), client.server);
  shown.push(inspect(await client.job("a", "b").catch((error) => error), { depth: 20, showHidden: true }));
  shown.push(inspect(await new Client({ server: "http://127.0.0.1:9", token: secret, retryFor: 0 }).job("a", "b").catch((error) => error), { depth: 20 }));
  assert.throws(() => new Client({ token: `${secret}\n` }), (error) => {
    shown.push(inspect(error));
    return error.error === "invalid_token";
  });
  assert.throws(() => new Client({ server: "ftp://name:hidden-password@host" }), (error) => shown.push(inspect(error)) > 0);
  assert.throws(() => new Client({ server: "name:hidden-password@host" }), (error) => shown.push(inspect(error)) > 0);
  for (const text of shown) assert.doesNotMatch(text, /very-secret|hidden-password/);
});

test("logs are read and followed, and the events of a job end with it", async () => {
  const app = new App({ type: "logs", client });
  const chatty = app.task({ name: "chatty" }, async (input, context) => {
    for (let n = 0; n < 3; n += 1) {
      context.log(`line ${n}`, { n });
      context.progress({ n });
      await sleep(700);
    }
    context.log.warn("last");
  });
  await working(app, { client }, async () => {
    const handle = await chatty.add({});
    const [followed, events] = await Promise.all([collect(handle.logs({ follow: true })), collect(handle.events())]);
    const texts = ["line 0", "line 1", "line 2", "last"];
    assert.deepEqual(followed.map((line) => line.message), texts);
    assert.deepEqual((await collect(handle.logs())).map((line) => line.message), texts);
    assert.deepEqual((await collect(handle.logs({ from: 2 }))).map((line) => [line.number, line.level]), [[2, "info"], [3, "warn"]]);
    assert.deepEqual(followed[1].fields, { n: 1 });
    assert.equal(events.at(-1).kind, "end");
    assert.equal(events.at(-1).job.state, "completed");
    assert.ok(events.some((event) => event.kind === "progress"));
    assert.deepEqual(events.filter((event) => event.kind === "state").map(({ event }) => event.state).slice(0, 2), ["pending", "running"]);
  });
});

test("the events of all jobs arrive in order, and go on after the last one", async () => {
  const stop = new AbortController();
  const seen = [];
  const reading = (async () => {
    for await (const event of client.events({ type: "seen" }, { signal: stop.signal })) seen.push(event);
  })();
  await sleep(300);
  await client.add("seen", {}, { id: "a" });
  await client.cancel("seen", "a");
  await until(() => seen.length >= 2);
  stop.abort();
  await assert.rejects(reading, { name: "AbortError" });
  assert.deepEqual(seen.map(({ event }) => event), ["added", "cancelled"]);
  const next = client.events({ type: "seen", since: seen[0].seq });
  assert.equal((await next.next()).value.event, "cancelled");
  await next.return();
});

test("a group ends with its jobs, and adds the job that it states", async () => {
  const app = new App({ type: "grouped", client });
  const part = app.task({ name: "part" }, (input) => {
    if (input.bad) throw new Fail("bad");
    return input.n;
  });
  const ended = app.task({ name: "ended" }, (_, context) => context.callback.counts);
  const group = client.group("import-1");
  await group.create({ on_complete: await ended.job({}) });
  await group.add(await Promise.all([{ n: 1 }, { n: 2 }, { bad: true }].map((input) => part.job(input))));
  assert.equal((await group.close()).state, "closed");
  await working(app, { client }, async () => {
    const record = await group.wait({ signal: AbortSignal.timeout(15_000) });
    assert.deepEqual([record.state, record.counts.completed, record.counts.failed], ["failed", 2, 1]);
    const [called] = (await until(async () => (await group.status()).called.length === 1 && group.status())).called;
    const counts = await client.result(called.type, called.id, { timeout: 10 });
    assert.equal(counts.completed, 2);
  });
  assert.equal((await collect(client.groups({ state: "failed" }))).length, 1);
  assert.equal(await group.remove(), true);
});

test("a worker writes the schedules of its tasks, which add jobs with their terms", async () => {
  const app = new App({ type: "timed", client });
  app.task({ name: "nightly", schedule: "30 2 * * * Europe/Berlin", tags: ["night"], rate: "100/60s" }, (_, context) => context.schedule.name);
  await working(app, { client }, async () => {
    const schedule = await until(() => client.schedule("timed.nightly").status().catch(() => undefined));
    assert.deepEqual([schedule.when.cron, schedule.when.zone], ["30 2 * * *", "Europe/Berlin"]);
    assert.deepEqual([schedule.job.task, schedule.job.tags, schedule.job.reason], ["nightly", ["night"], ["rate:100/60s:timed.nightly"]]);
    const { fires } = await client.schedule("timed.nightly").preview(2);
    assert.match(fires[0].local, /02:30:00/);
    const fired = await client.schedule("timed.nightly").fire();
    assert.equal(await client.result("timed", fired.job, { timeout: 10 }), "timed.nightly");
    assert.equal((await client.schedule("timed.nightly").pause()).state, "paused");
    assert.equal((await client.schedule("timed.nightly").resume()).state, "active");
    assert.equal(await client.schedule("timed.nightly").remove(), true);
  });
  assert.deepEqual(await collect(client.schedules()), []);
});

test("the options of a task hold for its jobs", async () => {
  const app = new App({ type: "terms", client });
  const options = {
    name: "all", priority: 5, tags: (input) => [`n:${input.n}`], unique: { mode: "until_end", of: ["/n"] }, rate: "5/1s:shared", keep: 60, max_attempts: 2, backoff: [0.05],
  };
  let runs = 0;
  const task = app.task(options, () => {
    runs += 1;
    throw new RangeError("no");
  });
  const first = await task.add({ n: 1 }, { priority: 6 });
  const second = await task.add({ n: 1 });
  assert.equal(second.added.added, "found");
  assert.equal(second.id, first.id);
  await working(app, { client }, async () => {
    await assert.rejects(first.result({ timeout: 10 }), (error) => error instanceof JobFailed && error.errorClass.startsWith("RangeError") && /terms|test/.test(error.trace));
  });
  const job = await first.status();
  assert.deepEqual([runs, job.attempts, job.priority, job.tags, job.reasons, job.max_attempts], [2, 2, 6, ["n:1"], ["rate:5/1s:shared"], 2]);
  assert.equal(steps(job, "crashed") + steps(job, "failed"), 2);
  assert.ok(Math.abs(job.removed_us - job.changed_us - 60e6) < 1e6);
});
