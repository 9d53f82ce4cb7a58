// The real server, and a proxy with faults, for tests.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import http from "node:http";
import net from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { Client } from "turnwise-client";
import { Worker } from "turnwise-client/worker";

const CONFIG = "[workers]\nhealth_interval = 0.3\nhealth_timeout = 1.5\n";

export async function freePort() {
  const server = net.createServer().listen(0, "127.0.0.1");
  await new Promise((resolve) => server.once("listening", resolve));
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  return port;
}

export class TestServer {
  static async start(config = CONFIG) {
    const server = new TestServer();
    server.folder = mkdtempSync(join(tmpdir(), "turnwise-test-"));
    server.port = await freePort();
    server.url = `http://127.0.0.1:${server.port}`;
    writeFileSync(join(server.folder, "config.ini"), config);
    await server.up();
    return server;
  }

  async up() {
    assert.ok(process.env.TURNWISE_BIN, "TURNWISE_BIN names the server's program");
    const store = `embedded:${join(this.folder, "data")}`;
    const args = ["serve", "--listen", `127.0.0.1:${this.port}`, "--store", store, "--config", join(this.folder, "config.ini"), "--log", "warn"];
    this.process = spawn(process.env.TURNWISE_BIN, args, { stdio: ["ignore", "ignore", "pipe"] });
    const started = this.process;
    process.once("exit", () => started.kill("SIGKILL"));
    this.log = "";
    this.process.stderr.on("data", (data) => (this.log += data));
    this.ended = new Promise((resolve) => this.process.once("exit", resolve));
    for (let attempts = 0; ; attempts += 1) {
      const answer = await fetch(`${this.url}/_up`).catch(() => undefined);
      await answer?.arrayBuffer();
      if (answer?.ok) return;
      assert.ok(attempts < 200 && this.process.exitCode === null, `the server does not start: ${this.log}`);
      await sleep(50);
    }
  }

  async kill() {
    this.process.kill("SIGKILL");
    await this.ended;
  }

  async stop() {
    await this.kill();
    rmSync(this.folder, { recursive: true, force: true });
  }

  /** Adds a token. The first one must be an administrator's, and adds the others. */
  async token(scopes, by) {
    const headers = { "content-type": "application/json", ...(by ? { authorization: `Bearer ${by}` } : {}) };
    const answer = await fetch(`${this.url}/v1/tokens`, { method: "POST", headers, body: JSON.stringify({ scopes }) });
    assert.equal(answer.status, 201);
    return (await answer.json()).token;
  }

  client(options = {}) {
    return new Client({ server: this.url, ...options });
  }
}

/**
 * Passes requests on. `fault` sees each request, and may return `drop-answer`, `hang-answer`, `drop`, `hang`, a number of ms that the
 * request is late, or an answer `{ status, body }`.
 */
export class Proxy {
  static async start(port) {
    const proxy = new Proxy();
    proxy.requests = [];
    proxy.fault = () => undefined;
    proxy.server = http.createServer((request, response) => {
      const pieces = [];
      request.on("data", (piece) => pieces.push(piece));
      request.on("end", () => proxy.pass(request, Buffer.concat(pieces), response, port));
    });
    proxy.server.listen(0, "127.0.0.1");
    await new Promise((resolve) => proxy.server.once("listening", resolve));
    proxy.url = `http://127.0.0.1:${proxy.server.address().port}`;
    return proxy;
  }

  pass(request, body, response, port) {
    const seen = { method: request.method, path: request.url, body: body.toString() };
    this.requests.push(seen);
    const fault = this.fault(seen);
    if (fault === "drop") return request.socket.destroy();
    if (fault === "hang") return;
    if (typeof fault === "number") setTimeout(() => this.send(request, body, response, port, seen), fault);
    else if (typeof fault === "object") {
      response.writeHead(fault.status, { "content-type": "application/json" });
      response.end(fault.body);
    } else this.send(request, body, response, port, seen, fault);
  }

  send(request, body, response, port, seen, fault) {
    const passed = http.request({ host: "127.0.0.1", port, method: request.method, path: request.url, headers: request.headers, agent: false }, (answer) => {
      const pieces = [];
      if (fault === "hang-answer") return answer.resume();
      if (fault === "drop-answer") {
        answer.on("data", (piece) => pieces.push(piece));
        answer.on("end", () => {
          seen.answer = Buffer.concat(pieces).toString();
          request.socket.destroy();
        });
        return;
      }
      response.writeHead(answer.statusCode, answer.headers);
      answer.pipe(response);
    });
    passed.on("error", () => request.socket.destroy());
    response.on("close", () => passed.destroy());
    passed.end(body);
  }

  async stop() {
    this.server.closeAllConnections();
    await new Promise((resolve) => this.server.close(resolve));
  }
}

/** Runs a worker while `work` runs. */
export async function working(app, options, work) {
  const lines = [];
  const worker = new Worker(app, { grace: 5, say: (line) => lines.push(line), ...options });
  const running = worker.run();
  running.catch(() => {});
  try {
    return await work(worker, lines, running);
  } finally {
    worker.stop();
    await running.catch(() => {});
  }
}

export async function until(what, seconds = 20) {
  for (const end = performance.now() + seconds * 1000; ; await sleep(20)) {
    const found = await what();
    if (found) return found;
    assert.ok(performance.now() < end, `this does not become true: ${what}`);
  }
}

export async function collect(all) {
  const found = [];
  for await (const one of all) found.push(one);
  return found;
}

/** How often the history of a job has this step. */
export function steps(job, type) {
  return job.history.filter((step) => step.type === type).length;
}

export { sleep };
