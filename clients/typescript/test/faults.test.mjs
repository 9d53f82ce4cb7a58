import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, afterEach, before, test } from "node:test";
import { App, Client } from "turnwise-client";
import { Worker } from "turnwise-client/worker";
import { Proxy, TestServer, collect, sleep, steps, until, working } from "./server.mjs";

const CLI = new URL("../dist/cli.js", import.meta.url).pathname;
const JOBS = new URL("fixtures/jobs.mjs", import.meta.url).pathname;

let server;
let client;
let types = 0;
let folder;
const commands = [];
const proxies = [];
before(async () => {
  folder = mkdtempSync(join(tmpdir(), "turnwise-test-"));
  server = await TestServer.start();
  client = server.client();
});
afterEach(async () => {
  for (const command of commands.splice(0)) {
    command.process.kill("SIGKILL");
    await command.ended;
  }
  for (const proxy of proxies.splice(0)) await proxy.stop();
});
after(async () => {
  rmSync(folder, { recursive: true, force: true });
  await server.stop();
});

const newType = () => `type${(types += 1)}`;
const newApp = () => new App({ type: newType(), client });

async function newProxy() {
  const proxy = await Proxy.start(server.port);
  proxies.push(proxy);
  return proxy;
}

/** Starts `turnwise-worker`. */
function command(type, name, { args = [], env = {}, url = server.url } = {}) {
  const notes = join(folder, type);
  const all = { ...process.env, TEST_TYPE: type, TEST_NAME: name, TEST_NOTES: notes, TURNWISE_SERVER: url, ...env };
  const started = { lines: "" };
  started.process = spawn(process.execPath, [CLI, JOBS, ...args], { env: all, stdio: ["ignore", "pipe", "pipe"] });
  started.process.stdout.on("data", (data) => (started.lines += data));
  started.process.stderr.on("data", (data) => (started.lines += data));
  started.ended = new Promise((resolve) => started.process.once("exit", (code, signal) => resolve(code ?? signal)));
  started.ready = () => until(() => started.lines.includes("registered as"));
  commands.push(started);
  return started;
}

function notes(type) {
  try {
    return readFileSync(join(folder, type), "utf8").trim().split("\n");
  } catch {
    return [];
  }
}

for (const [what, path] of [["with the next request for jobs", "/accept"], ["on its own", "/end"]]) {
  test(`an end that is sent ${what}, and whose answer is lost, is recorded once`, async () => {
    const app = newApp();
    let runs = 0;
    const task = app.task({ name: "once", max_attempts: 5, backoff: 0.01 }, async () => {
      runs += 1;
      // With one slot, the end goes with the next request for jobs. With two, one already waits for jobs.
      if (path === "/end") await sleep(100);
      return "result";
    });
    const proxy = await newProxy();
    let dropped = 0;
    proxy.fault = (request) => (request.path.endsWith(path) && request.body.includes('"finish"') && dropped++ < 3 ? "drop-answer" : undefined);
    await working(app, { client: new Client({ server: proxy.url }), slots: path === "/end" ? 2 : 1 }, async () => {
      const handle = await task.add({});
      assert.equal(await handle.result({ timeout: 10 }), "result");
      await until(() => dropped >= 4);
      await sleep(300);
      const job = await handle.status();
      assert.deepEqual([runs, job.attempts, steps(job, "started"), steps(job, "completed")], [1, 1, 1, 1]);
    });
    const sent = proxy.requests.filter((request) => request.path.endsWith(path) && request.body.includes('"finish"'));
    assert.equal(sent.length, 4);
    assert.equal(new Set(sent.map((request) => JSON.parse(request.body)).map((body) => JSON.stringify(body.ends ?? body))).size, 1);
    // The first one was recorded, and the others were told the same.
    for (const request of sent.slice(0, 3)) assert.match(request.answer, /"state":"completed"/);
  });
}

test("a job whose delivery is lost is delivered again, and runs once", async () => {
  const app = newApp();
  let runs = 0;
  const task = app.task({ name: "once" }, () => (runs += 1));
  const proxy = await newProxy();
  const handle = await task.add({});
  let dropped = 0;
  proxy.fault = (request) => (request.path.endsWith("/accept") && dropped++ < 2 ? "drop-answer" : undefined);
  await working(app, { client: new Client({ server: proxy.url }) }, async () => {
    assert.equal(await handle.result({ timeout: 10 }), 1);
    const job = await handle.status();
    assert.deepEqual([job.attempts, steps(job, "started")], [1, 1]);
    assert.match(proxy.requests.find((request) => request.path.endsWith("/accept")).answer, /"claim":1/);
  });
});

test("a worker with a free slot waits for jobs, and does not ask again and again", async () => {
  const app = newApp();
  const task = app.task({ name: "n" }, () => sleep(1500));
  const proxy = await newProxy();
  await working(app, { client: new Client({ server: proxy.url }), slots: 4 }, async () => {
    const handles = await task.addMany([{}, {}]);
    for (const handle of handles) assert.equal((await handle.wait({ timeout: 10 })).state, "completed");
  });
  const accepts = proxy.requests.filter((request) => request.path.endsWith("/accept"));
  assert.ok(accepts.length <= 8, `${accepts.length} requests for jobs`);
});

test("workers that are killed at any moment lose no job, and none ends twice", async () => {
  const type = newType();
  const kills = Number(process.env.TEST_KILLS ?? 8);
  const jobs = Array.from({ length: kills * 40 }, () => ({ type, task: "short", options: { ms: 20 }, max_attempts: 0, backoff: { fixed_ms: 10 } }));
  const handles = await client.addMany(jobs);
  for (let n = 0; n < kills; n += 1) {
    const worker = command(type, `worker${n}`, { args: ["--slots", "4"] });
    await worker.ready();
    await sleep(Math.random() * 200);
    worker.process.kill("SIGKILL");
    await worker.ended;
  }
  command(type, "last", { args: ["--slots", "40"] });
  for (const handle of handles) assert.equal((await handle.wait({ timeout: 60 })).state, "completed");
  const ended = await collect(client.jobs({ type }));
  assert.equal(ended.length, jobs.length);
  for (const job of ended) assert.deepEqual([job.state, steps(job, "completed")], ["completed", 1]);
});

test("a refused batch of ends is sent one by one, and answers of gateways cost nothing", async () => {
  const app = newApp();
  const task = app.task({ name: "n" }, ({ n }) => n);
  const proxy = await newProxy();
  const faults = [{ status: 500, body: "oops" }, { status: 404, body: "<html>" }, { status: 400, body: '{"error":"bad_request","reason":"all","hint":""}' }];
  proxy.fault = (request) => (request.body.includes('"finish"') && request.path.endsWith("/accept") ? faults.shift() : undefined);
  const handles = await task.addMany([1, 2, 3].map((n) => ({ n })));
  await working(app, { client: new Client({ server: proxy.url }) }, async () => {
    assert.deepEqual(await Promise.all(handles.map((handle) => handle.result({ timeout: 10 }))), [1, 2, 3]);
  });
  assert.equal(faults.length, 0);
  const alone = proxy.requests.filter((request) => request.path.endsWith("/end"));
  assert.equal(alone.length, 3);
});

test("a server that is killed and comes back loses no job and no end", async () => {
  const own = await TestServer.start();
  try {
    const client = own.client({ retryFor: 30 });
    const app = new App({ type: "restart", client });
    const runs = new Map();
    const task = app.task({ name: "n", max_attempts: 5, backoff: 0.05 }, async ({ n }) => {
      runs.set(n, (runs.get(n) ?? 0) + 1);
      await sleep(100);
      return n * 2;
    });
    await working(app, { client, slots: 10 }, async (_, lines) => {
      const handles = await task.addMany(Array.from({ length: 60 }, (_, n) => ({ n })));
      const results = Promise.all(handles.map((handle) => handle.result({ timeout: 40 })));
      for (let kills = 0; kills < 2; kills += 1) {
        await sleep(250);
        await own.kill();
        await sleep(400);
        await own.up();
      }
      assert.deepEqual(await results, Array.from({ length: 60 }, (_, n) => n * 2));
      assert.ok(lines.some((line) => line.includes("asking again")), lines.join("\n"));
      for (const job of await collect(client.jobs({ type: "restart" }))) assert.deepEqual([job.state, steps(job, "completed")], ["completed", 1]);
    });
  } finally {
    await own.stop();
  }
});

test("the jobs of a worker that is killed go to another one, with the steps that they have done", async () => {
  const type = newType();
  const first = command(type, "first", { env: { TEST_HANG: "1" } });
  await first.ready();
  const handle = await client.add(type, {}, { task: "hang" });
  await until(() => notes(type).length === 2);
  // The step is recorded with the job.
  await until(async () => (await handle.status()).info);
  first.process.kill("SIGKILL");
  const second = command(type, "second");
  await second.ready();
  assert.deepEqual(await handle.result({ timeout: 20 }), { by: "second", first: "kept" });
  assert.deepEqual(notes(type), ["first begins 1", "first steps", "second begins 2"]);
  const job = await handle.status();
  assert.deepEqual([job.attempts, steps(job, "completed")], [2, 1]);
});

test("a worker whose loop is blocked loses its jobs, ends nothing, and registers again", async () => {
  const type = newType();
  const first = command(type, "first", { env: { TEST_HANG: "1" } });
  await first.ready();
  const handle = await client.add(type, { ms: 5000 }, { task: "block" });
  await until(() => notes(type).length === 1);
  const second = command(type, "second");
  await second.ready();
  assert.deepEqual(await handle.result({ timeout: 10 }), { by: "second" });
  assert.deepEqual(notes(type), ["first begins 1", "second begins 2"]);
  await until(() => first.lines.includes("registers again"));
  await until(() => first.lines.split("registered as").length === 3);
  assert.ok(notes(type).includes("first unblocked"));
  const job = await handle.status();
  assert.deepEqual([job.result, job.attempts, steps(job, "completed")], [{ by: "second" }, 2, 1]);
});

test("a worker that the server has removed stops its runs, and registers again", async () => {
  const app = newApp();
  const causes = [];
  const task = app.task({ name: "long", max_attempts: 5, backoff: 0.05 }, async (_, context) => {
    if (context.attempt > 1) return "second";
    await sleep(60_000, undefined, { signal: context.signal }).catch(() => causes.push(context.signal.reason.stopCause));
    return "first";
  });
  const proxy = await newProxy();
  await working(app, { client: new Client({ server: proxy.url }) }, async (_, lines) => {
    const handle = await task.add({});
    await until(async () => (await handle.status()).state === "running");
    proxy.fault = () => "drop";
    await until(async () => (await handle.status()).state !== "running");
    proxy.fault = () => undefined;
    assert.equal(await handle.result({ timeout: 20 }), "second");
    assert.deepEqual(causes, ["lost"]);
    assert.equal(lines.filter((line) => line.startsWith("registered as")).length, 2);
  });
});

test("at SIGTERM, a worker takes no new jobs, and ends those that it runs", async () => {
  const type = newType();
  const worker = command(type, "worker", { args: ["--slots", "1"] });
  await worker.ready();
  const [first, second] = await client.addMany([1, 2].map(() => ({ type, task: "short", options: { ms: 700 } })));
  await until(() => notes(type).length === 1);
  worker.process.kill("SIGTERM");
  assert.equal(await worker.ended, 0);
  assert.equal((await first.status()).state, "completed");
  const job = await second.status();
  assert.deepEqual([job.state, job.attempts, steps(job, "started")], ["pending", 0, 0]);
  assert.equal((await workers(type)).length, 0);
});

test("after the grace, jobs are given back without an attempt, also those that do not listen", async () => {
  const type = newType();
  const worker = command(type, "worker", { args: ["--grace", "0.2"], env: { TEST_HANG: "1" } });
  await worker.ready();
  const handles = [await client.add(type, {}, { task: "hang" }), await client.add(type, {}, { task: "deaf" })];
  await until(() => notes(type).length === 3);
  const began = performance.now();
  worker.process.kill("SIGTERM");
  assert.equal(await worker.ended, 0);
  assert.ok(performance.now() - began < 8000);
  for (const handle of handles) {
    const job = await handle.status();
    assert.deepEqual([job.state, job.attempts], ["pending", 0]);
  }
});

test("a second signal ends the worker at once", async () => {
  const type = newType();
  const worker = command(type, "worker");
  await worker.ready();
  await client.add(type, {}, { task: "deaf" });
  await until(() => notes(type).length === 1);
  worker.process.kill("SIGTERM");
  await until(() => worker.lines.includes("second signal"));
  const began = performance.now();
  worker.process.kill("SIGTERM");
  assert.equal(await worker.ended, 143);
  assert.ok(performance.now() - began < 1000);
});

test("a worker that an operator drains ends after its last job", async () => {
  const type = newType();
  const worker = command(type, "worker");
  await worker.ready();
  const handle = await client.add(type, { ms: 1000 }, { task: "short" });
  await until(() => notes(type).length === 1);
  const [{ id }] = await workers(type);
  const drained = await fetch(`${server.url}/v1/workers/${type}/${id}`, { method: "PUT", headers: { "content-type": "application/json" }, body: '{"mode":"drain"}' });
  assert.equal(drained.status, 200);
  assert.equal(await worker.ended, 0);
  assert.match(worker.lines, /drained/);
  assert.equal((await handle.status()).state, "completed");
});

test("a worker stops while the server is gone", async () => {
  const own = await TestServer.start();
  const app = new App({ type: "gone", client: own.client() });
  app.task({ name: "x" }, () => 1);
  const lines = [];
  const worker = new Worker(app, { grace: 0.2, say: (line) => lines.push(line) });
  const running = worker.run();
  await until(() => lines.length > 0);
  await own.stop();
  await until(() => lines.some((line) => line.includes("no answer")));
  const began = performance.now();
  worker.stop();
  await running;
  assert.ok(performance.now() - began < 15_000);
  assert.match(lines.join("\n"), /could not leave[^]*stopped/);
});

for (const fault of ["hang", "hang-answer"]) {
  test(`a stop in the middle of a request with ends loses neither the ends nor the jobs that it has claimed (${fault})`, async () => {
    const app = newApp();
    let runs = 0;
    const task = app.task({ name: "n", max_attempts: 5, backoff: 0.01 }, () => (runs += 1));
    const long = app.task({ name: "long", priority: -1 }, () => sleep(2000));
    const proxy = await newProxy();
    const lasting = await long.add({});
    await task.addMany(Array(50).fill({}));
    let hung = 0;
    proxy.fault = (request) => (request.body.includes('"ends"') && ++hung ? fault : undefined);
    const worker = new Worker(app, { client: new Client({ server: proxy.url }), slots: 21, grace: 5, say: () => {} });
    const running = worker.run();
    await until(() => hung > 0);
    await sleep(200);
    worker.stop();
    const expected = [...Array(20).fill("completed"), ...Array(30).fill("pending")];
    const states = async () => (await collect(client.jobs({ type: app.type }))).filter((job) => job.task === "n").map((job) => job.state);
    // Also while another job still runs.
    await until(async () => (await states()).sort().join() === expected.join(), 1);
    assert.equal((await lasting.status()).state, "running");
    await running;
    const jobs = (await collect(client.jobs({ type: app.type }))).filter((job) => job.task === "n");
    assert.equal(runs, 20);
    assert.deepEqual(jobs.map((job) => job.state).sort(), expected);
    for (const job of jobs) assert.deepEqual([job.attempts, steps(job, "completed")], job.state === "completed" ? [1, 1] : [0, 0]);
    // Those that the request has claimed, if it has arrived, were given back.
    const givenBack = jobs.filter((job) => job.state === "pending" && steps(job, "started") === 1).length;
    assert.ok(fault === "hang" ? givenBack <= 1 : givenBack >= 20, String(givenBack));
    assert.equal((await lasting.status()).state, "completed");
  });
}

test("the values of steps that run together are all remembered, also if one report is late", async () => {
  const app = newApp();
  const ran = [];
  const task = app.task({ name: "steps", max_attempts: 3, backoff: 0.01 }, async (_, context) => {
    await Promise.all(["a", "b", "c"].map((name) => context.step(name, () => ran.push(name))));
    if (context.attempt === 1) throw new Error("again");
    return "done";
  });
  const proxy = await newProxy();
  let updates = 0;
  proxy.fault = (request) => (request.path.endsWith("/update") && updates++ === 0 ? 300 : undefined);
  await working(app, { client: new Client({ server: proxy.url }) }, async () => {
    assert.equal(await (await task.add({})).result({ timeout: 10 }), "done");
  });
  assert.deepEqual(ran, ["a", "b", "c"]);
  assert.ok(updates >= 3);
});

test("a stop ends a worker after its grace while its ends have no answer", async () => {
  const app = newApp();
  const task = app.task({ name: "n" }, () => 1);
  const proxy = await newProxy();
  await task.add({});
  let dropped = 0;
  proxy.fault = (request) => (request.body.includes('"finish"') && ++dropped ? "drop" : undefined);
  const worker = new Worker(app, { client: new Client({ server: proxy.url }), slots: 1, grace: 0.5, say: () => {} });
  const running = worker.run();
  await until(() => dropped > 0);
  const began = performance.now();
  worker.stop();
  await running;
  assert.ok(performance.now() - began < 3000);
});

test("a second stop ends a worker at once, also while the server is gone", async () => {
  const own = await TestServer.start();
  const app = new App({ type: "gone", client: own.client() });
  let begun = false;
  const task = app.task({ name: "x" }, (_, context) => ((begun = true), sleep(60_000, undefined, { signal: context.signal })));
  await task.add({});
  const worker = new Worker(app, { say: () => {} });
  const running = worker.run();
  await until(() => begun);
  await own.stop();
  worker.stop();
  await sleep(100);
  const began = performance.now();
  worker.stop();
  await running;
  assert.ok(performance.now() - began < 500);
});

test("tokens: what they allow works, and what they do not is told without them", async () => {
  const own = await TestServer.start();
  try {
    const token = async (scopes, by) => {
      const headers = { "content-type": "application/json", ...(by ? { authorization: `Bearer ${by}` } : {}) };
      const answer = await fetch(`${own.url}/v1/tokens`, { method: "POST", headers, body: JSON.stringify({ scopes }) });
      assert.equal(answer.status, 201);
      return (await answer.json()).token;
    };
    const admin = await token(["admin"]);
    const mailer = await token(["worker:mail"], admin);
    const sender = await token(["client:*"], admin);
    const client = own.client({ token: sender });
    const handle = await client.add("mail", { ms: 0 }, { task: "short" });
    const worker = command("mail", "worker", { env: { TURNWISE_TOKEN: mailer }, url: own.url });
    assert.equal(await handle.result({ timeout: 10 }), "done");
    const refused = [
      command("other", "worker", { env: { TURNWISE_TOKEN: mailer }, url: own.url }),
      command("mail", "worker", { env: { TURNWISE_TOKEN: "tw_wrong" }, url: own.url }),
    ];
    for (const one of refused) assert.equal(await one.ended, 1);
    assert.match(refused[0].lines, /forbidden/);
    assert.match(refused[1].lines, /unauthorized/);
    // The token ends while the worker runs.
    const id = (await (await fetch(`${own.url}/v1/tokens`, { headers: { authorization: `Bearer ${admin}` } })).json()).tokens.find(({ scopes }) => scopes[0] === "worker:mail").id;
    await fetch(`${own.url}/v1/tokens/${id}`, { method: "DELETE", headers: { authorization: `Bearer ${admin}` } });
    assert.equal(await worker.ended, 1);
    assert.match(worker.lines, /unauthorized/);
    for (const one of [worker, ...refused]) for (const secret of [mailer, "tw_wrong"]) assert.ok(!one.lines.includes(secret));
  } finally {
    await own.stop();
  }
});

test("the command tells what is wrong with its arguments", async () => {
  const help = command("x", "x", { args: ["--help"] });
  assert.equal(await help.ended, 0);
  assert.match(help.lines, /turnwise-worker \[MODULE\]/);
  for (const args of [["--slots", "none"], ["another"], ["--bad"], ["--grace", ""]]) {
    const wrong = command("x", "x", { args });
    assert.equal(await wrong.ended, 2, args.join(" "));
    assert.match(wrong.lines, /^turnwise-worker: /);
  }
});

async function workers(type) {
  return (await (await fetch(`${server.url}/v1/workers?type=${type}`)).json()).workers;
}
