import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { server } from "turnwise-client/testing";
import { program } from "../programs.mjs";

let turnwise;
let site;
before(async () => {
  turnwise = await server();
  site = await program("node", ["server.mjs"], import.meta.url);
});
after(async () => {
  await site?.stop();
  await turnwise.stop();
});

const ask = async (method, path, body) => {
  const headers = { "content-type": "application/json" };
  const response = await fetch(site.url + path, { method, headers, body: body && JSON.stringify(body) });
  return { status: response.status, body: await response.json() };
};

test("a report is made by the worker, and asked for by the site", async () => {
  const added = await ask("POST", "/reports", { orders: [{ price: 3 }, { price: 4 }] });
  const { id } = added.body;
  assert.equal(added.status, 202);
  assert.equal((await ask("GET", `/reports/${id}`)).body.state, "pending");
  const none = await ask("POST", "/reports", { orders: [] });
  const cancelled = await ask("POST", "/reports", { orders: [{ price: 1 }] });
  assert.deepEqual((await ask("DELETE", `/reports/${cancelled.body.id}`)).body, { state: "cancelled" });
  const worker = await program("turnwise-worker", ["./jobs.mjs"], import.meta.url);
  try {
    assert.deepEqual((await ask("GET", `/reports/${id}/result`)).body, { orders: 2, total: 7 });
    const { state, progress } = (await ask("GET", `/reports/${id}`)).body;
    assert.deepEqual({ state, progress }, { state: "completed", progress: { done: 2, of: 2 } });
    const failed = await ask("GET", `/reports/${none.body.id}/result`);
    assert.equal(failed.status, 409);
    assert.match(failed.body.reason, /there are no orders/);
    assert.equal((await ask("GET", "/reports/unknown")).status, 404);
  } finally {
    await worker.stop();
  }
});
