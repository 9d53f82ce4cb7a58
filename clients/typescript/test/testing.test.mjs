// The server for the tests of other programs: its clock, `drain` and `assertAdded`, as such a test uses them.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import process from "node:process";
import { afterEach, beforeEach, describe, it } from "node:test";
import { App, Client, Snooze } from "turnwise-client";
import { server } from "turnwise-client/testing";
import { collect, until, working } from "./server.mjs";

const seen = [];
const started = () => seen.filter((one) => one === "started").length;
let goOn = () => {};
const app = new App({ type: "shop" });
const send = app.task({ name: "send" }, ({ to, copies = 1 }) => {
  seen.push(to);
  return `${copies} sent to ${to}`;
});
const order = app.task({ name: "order" }, async ({ number }) => {
  await send.add({ to: `${number}@example.org` });
  return number;
});
const crash = app.task({ name: "crash", max_attempts: 3, backoff: [60, 3600], jitter: false }, (_, { attempt }) => {
  if (attempt < 3) throw new RangeError(`attempt ${attempt}`);
  return attempt;
});
const big = app.task({ name: "big", max_attempts: 1 }, () => "x".repeat(14_000_000));
app.task({ name: "hourly", schedule: "0 * * * *" }, () => void seen.push("hourly"));
const slow = app.task({ name: "slow", timeout: 3600, max_attempts: 1 }, async () => {
  seen.push("started");
  await new Promise((resolve) => (goOn = resolve));
  return "done";
});

describe("the server for tests", { timeout: 120_000 }, () => {
  let turnwise;

  beforeEach(async () => {
    seen.length = 0;
    turnwise = await server(app);
  });
  afterEach(() => turnwise.stop());

  it("runs all that can run, and what that adds", async () => {
    const first = await send.add({ to: "a@example.org", copies: 2 });
    const last = await send.add({ to: "b@example.org" }, { after: [{ type: "shop", id: first.id }] });
    const later = await send.add({ to: "c@example.org" }, { delay_ms: 60_000 });
    await order.add({ number: 5 });
    const ran = await turnwise.drain();
    assert.deepEqual(ran.map(({ state }) => state), ["completed", "completed", "completed", "completed"]);
    assert.equal(await first.result(), "2 sent to a@example.org");
    assert.deepEqual(seen.toSorted(), ["5@example.org", "a@example.org", "b@example.org"]);
    assert.ok(seen.indexOf("a@example.org") < seen.indexOf("b@example.org"));
    assert.equal((await last.status()).state, "completed");
    assert.equal((await later.status()).state, "delayed");
    assert.deepEqual(await turnwise.drain(), []);
  });

  it("ends delays and backoffs when its clock was moved", async () => {
    const delayed = await send.add({ to: "a@example.org" }, { delay_ms: 25 * 3_600_000 });
    const crashing = await crash.add({});
    assert.deepEqual((await turnwise.drain()).map(({ id }) => id), [crashing.id]);
    await turnwise.advance({ seconds: 59 });
    assert.deepEqual(await turnwise.drain(), []);
    await turnwise.advance({ seconds: 1 });
    assert.deepEqual((await turnwise.drain()).map(({ state }) => state), ["crashing"]);
    const before = await turnwise.advance();
    const passed = (await turnwise.advance({ hours: 26 })) - before;
    assert.ok(passed >= 26 * 3_600_000 && passed < 27 * 3_600_000, `${passed} ms`);
    assert.equal((await delayed.status()).state, "pending");
    await turnwise.drain();
    assert.equal((await delayed.status()).state, "completed");
    assert.equal(await crashing.result(), 3);
  });

  it("fires a schedule at each of its instants", async () => {
    assert.deepEqual((await collect(turnwise.client.schedules())).map(({ name }) => name), ["shop.hourly"]);
    for (let hour = 0; hour < 26; hour += 1) {
      await turnwise.advance({ hours: 1 });
      await turnwise.drain();
    }
    assert.deepEqual(seen, Array(26).fill("hourly"));
    const job = await send.job({ to: "a@example.org" });
    await turnwise.client.schedule("all").put({ when: { cron: "0 * * * *" }, overlap: "allow", job });
    await turnwise.advance({ hours: 26 });
    assert.equal((await turnwise.added(send)).length, 26);
  });

  it("fails jobs that start too late, and removes old records", async () => {
    const late = await send.add({ to: "a@example.org" }, { start_within_ms: 60_000 });
    await turnwise.advance({ minutes: 2 });
    assert.equal((await late.status()).state, "failed");
    await turnwise.advance({ days: 8 });
    await assert.rejects(late.status(), { status: 404 });
  });

  it("lets runs grow older only where the test says so", async () => {
    await working(app, { client: turnwise.client }, async () => {
      const patient = await slow.add({});
      await until(() => started() === 1);
      await turnwise.advance({ hours: 26 });
      goOn();
      assert.equal(await patient.result({ timeout: 20 }), "done");
      const lost = await slow.add({});
      await until(() => started() === 2);
      await turnwise.advance({ minutes: 59, timeouts: true });
      assert.equal((await lost.status()).state, "running");
      await turnwise.advance({ minutes: 1, timeouts: true });
      await assert.rejects(lost.result({ timeout: 20 }), { name: "JobFailed", message: /ran for longer than its timeout/ });
      goOn();
    });
  });

  it("finds jobs by what they were added with", async () => {
    await assert.rejects(turnwise.assertAdded(send), { name: "AssertionError", message: /no job of send was added with \{\}/ });
    const first = await send.add({ to: "a@example.org" });
    const second = await send.add({ to: "a@example.org", copies: 2 });
    assert.equal((await turnwise.assertAdded(send, { to: "a@example.org" })).id, second.id);
    assert.equal((await turnwise.assertAdded(send, { copies: 2 })).id, second.id);
    assert.deepEqual((await turnwise.added(send)).map(({ id }) => id), [first.id, second.id]);
    for (const payload of [{ to: "b@example.org" }, { copies: 3 }, { cc: null }]) {
      await assert.rejects(turnwise.assertAdded(send, payload), { message: /\{"to":"a@example.org","copies":2\}/ });
    }
    assert.deepEqual(await turnwise.added(order), []);
  });

  it("tells what fails", async (test) => {
    const warn = test.mock.method(console, "warn", () => {});
    await crash.add({});
    const large = await big.add({});
    await turnwise.drain();
    const told = warn.mock.calls.map(({ arguments: [line] }) => line).join("\n");
    assert.match(told, /RangeError: attempt 1\n +at /);
    assert.match(told, new RegExp(`big ${large.id} has failed: its result was refused`));
    assert.equal((await large.status()).state, "failed");
  });

  it("gives the environment and the apps their server back", async () => {
    const before = process.env.TURNWISE_SERVER;
    assert.equal(before, turnwise.url);
    const own = new Client({ server: "http://127.0.0.1:1" });
    const other = new App({ type: "other", client: own });
    other.task({ name: "again" }, () => {
      throw new Snooze(0);
    });
    const second = await server(other);
    assert.equal(other.client, second.client);
    assert.equal(new Client().server, second.url);
    assert.notEqual(second.url, before);
    await second.stop();
    assert.equal(other.client, own);
    assert.equal(process.env.TURNWISE_SERVER, before);
    const none = await server();
    await assert.rejects(none.drain(), /no apps/);
    await none.stop();
  });
});

describe("the program of the server", { timeout: 120_000 }, () => {
  it("ends with the test, also if that was killed or did not stop it", async () => {
    for (const end of ["await new Promise((resolve) => setTimeout(resolve, 600_000))", ""]) {
      const code = `import { server } from "turnwise-client/testing";
        const { client } = await server();
        console.log((await client.call("GET", ["store"])).url);
        ${end}`;
      const test = spawn(process.execPath, ["--input-type=module", "-e", code], { stdio: ["ignore", "pipe", "inherit"] });
      const [line] = await once(test.stdout, "data");
      const folder = String(line).trim().replace(/^embedded:/, "");
      if (end) test.kill("SIGKILL");
      await once(test, "exit");
      await until(() => !existsSync(folder));
    }
  });

  it("is missing: the error says so", async () => {
    const before = process.env.TURNWISE_BIN;
    try {
      process.env.TURNWISE_BIN = "/nowhere/turnwise";
      await assert.rejects(server(), /TURNWISE_BIN/);
      process.env.TURNWISE_BIN = "/bin/false";
      await assert.rejects(server(), /has ended with 1/);
    } finally {
      process.env.TURNWISE_BIN = before;
    }
  });
});
