import assert from "node:assert/strict";
import { test } from "node:test";
import { type } from "arktype";
import { App, Client } from "turnwise-client";
import * as v from "valibot";
import { z } from "zod";
import { SseParser } from "../dist/sse.js";
import { validate } from "../dist/standard.js";
import { Backoff, Waits, isCut } from "../dist/waits.js";
import { Proxy, freePort, sleep } from "./server.mjs";

test("events are the same however the stream is cut", () => {
  const stream =
    'retry: 1500\n\n:\n\nevent: state\nid: 7:0\ndata: {"a":\ndata: "é"}\n\nevent: none\n\ndata:bare\r\ndata\r\n\r\nid:8:1-end\revent: end\rdata: x:y\r\r';
  const expected = [
    { name: "state", data: '{"a":\n"é"}' },
    { name: "", data: "bare\n" },
    { name: "end", data: "x:y" },
  ];
  for (let size = 1; size < stream.length; size += 1) {
    const parser = new SseParser();
    const events = [];
    for (let at = 0; at < stream.length; at += size) events.push(...parser.push(stream.slice(at, at + size)));
    assert.deepEqual(events, expected, `in pieces of ${size}`);
    assert.deepEqual([parser.lastId, parser.retryMs], ["8:1-end", 1500]);
  }
});

test("a restart drops an unfinished event, and keeps the id of the one before", () => {
  const parser = new SseParser();
  assert.equal(parser.push("id: 5\ndata: one\n\nid: 6\ndata: half").length, 1);
  parser.restart();
  assert.deepEqual(parser.push("data: whole\n\n"), [{ name: "", data: "whole" }]);
  assert.equal(parser.lastId, "5");
  assert.throws(() => parser.push("x".repeat(2 ** 20 + 1)), /without an end/);
});

test("waits are shorter than what is cut, and become longer again", () => {
  const waits = new Waits();
  assert.equal(waits.longest(60_000), 60_000);
  waits.learn(60_000, 15_000, false, true);
  assert.deepEqual([waits.longest(60_000), waits.longest(10)], [7_500, 10]);
  // Neither a longer wait that was cut, nor an early answer, nor a shorter wait changes that.
  waits.learn(60_000, 30_000, false, true);
  for (let n = 1; n < 16; n += 1) waits.learn(7_500, 7_600, true, false);
  waits.learn(7_500, 10, true, false);
  waits.learn(1_000, 1_000, true, false);
  assert.equal(waits.longest(60_000), 7_500);
  waits.learn(7_500, 7_500, true, false);
  assert.equal(waits.longest(60_000), 15_000);
});

test("only a request that was held is cut, and pauses grow up to the longest", () => {
  assert.deepEqual([isCut(60_000, 199, true), isCut(60_000, 9_000, false), isCut(60_000, 60_000, true)], [false, false, false]);
  assert.equal(isCut(60_000, 9_000, true), true);
  const backoff = new Backoff(2);
  assert.deepEqual([backoff.next(), backoff.next()], [0, 0]);
  for (let limit = 100, n = 0; n < 100; n += 1, limit = Math.min(limit * 2, 5_000)) {
    const pause = backoff.next();
    assert.ok(pause >= limit / 2 && pause < limit);
  }
});

test("waits pass a gateway that cuts them", async () => {
  // A server that holds each request for as long as it is asked to, behind a gateway that cuts after 400 ms.
  const { createServer } = await import("node:http");
  const port = await freePort();
  const holds = createServer((request, response) => {
    const wait = Number(new URL(request.url, "http://x").searchParams.get("timeout_ms"));
    setTimeout(() => response.end(JSON.stringify({ finished: wait < 300, job: { wait } })), wait).unref();
  }).listen(port, "127.0.0.1");
  const proxy = await Proxy.start(port);
  proxy.server.on("request", (request) => setTimeout(() => request.socket.destroy(), 400).unref());
  const job = await new Client({ server: proxy.url, retryFor: 5 }).wait("a", "b");
  assert.ok(job.wait >= 150 && job.wait < 300, String(job.wait));
  await proxy.stop();
  holds.close();
  holds.closeAllConnections();
});

test("an answer that is not turnwise's is told, without its text", async () => {
  const proxy = await Proxy.start(9);
  proxy.fault = () => ({ status: 200, body: "<secret>" });
  await assert.rejects(new Client({ server: proxy.url }).job("a", "b"), (error) => error.error === "foreign_answer" && !error.message.includes("secret"));
  proxy.fault = () => ({ status: 302, body: "moved" });
  await assert.rejects(new Client({ server: proxy.url }).job("a", "b"), (error) => error.error === "foreign_answer" && error.status === 302);
  proxy.fault = () => ({ status: 503, body: "busy" });
  await assert.rejects(new Client({ server: proxy.url, retryFor: 0.2 }).job("a", "b"), (error) => error.error === "no_answer" && error.mayHaveWorked);
  await proxy.stop();
});

test("terms of tasks are stated in the server's units", () => {
  const app = new App({ type: "t" });
  const terms = (options) => app.task({ name: `n${app.tasks.size}`, ...options }, () => {}).terms();
  assert.deepEqual(terms({}), {});
  assert.deepEqual(terms({ backoff: [5, 30.5], timeout: 60, keep: 1, max_attempts: 0, final_errors: ["A"] }), {
    max_attempts: 0, backoff: { list_ms: [5000, 30500] }, timeout_ms: 60000, keep_ms: 1000, final_errors: ["A"],
  });
  assert.deepEqual(terms({ backoff: 2 }), { backoff: { fixed_ms: 2000 } });
  assert.deepEqual(terms({ backoff: { first: 1, most: 60, factor: 3 } }), { backoff: { exponential: { first_ms: 1000, most_ms: 60000, factor: 3 } } });
  assert.throws(() => app.task({ name: "n0" }, () => {}), /two tasks/);
  const when = (schedule) => app.task({ name: `n${app.tasks.size}`, schedule }, () => {}).schedule().terms.when;
  assert.deepEqual(when("0 9 * * MON"), { cron: "0 9 * * MON" });
  assert.deepEqual(when("0 0 9 * * MON"), { cron: "0 0 9 * * MON" });
  assert.deepEqual(when("0 9 * * * America/Argentina/Ushuaia"), { cron: "0 9 * * *", zone: "America/Argentina/Ushuaia" });
  assert.deepEqual(when({ when: { every_ms: 1000 }, overlap: "allow" }), { every_ms: 1000 });
});

test("schemas of zod, valibot and arktype validate inputs, and name the place of a problem", async () => {
  const app = new App({ type: "t" });
  const schemas = {
    zod: z.object({ to: z.string(), copies: z.number().default(1) }),
    valibot: v.object({ to: v.string(), copies: v.optional(v.number(), 1) }),
    arktype: type({ to: "string", copies: "number = 1" }),
  };
  for (const [name, input] of Object.entries(schemas)) {
    const task = app.task({ name, input }, () => {});
    // The worker's validation adds what is left out.
    assert.deepEqual((await task.job({ to: "a" })).options, { to: "a" });
    assert.deepEqual(await validate(input, { to: "a" }, "it"), { to: "a", copies: 1 });
    await assert.rejects(task.job({ to: 7 }), (error) => error.error === "invalid_input" && error.reason.startsWith(`the input of ${name} is not valid: to: `));
  }
});

test("nothing runs on import, and no handler of signals is set", async () => {
  await import("turnwise-client/worker");
  await sleep(0);
  assert.deepEqual([process.listenerCount("SIGTERM"), process.listenerCount("SIGINT")], [0, 0]);
});
