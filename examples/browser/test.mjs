import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { server } from "turnwise-client/testing";
import { program } from "../programs.mjs";

/** Chromium, spoken to by its protocol over two pipes. */
class Browser {
  #answers = new Map();
  #profile = mkdtempSync(join(tmpdir(), "turnwise-browser-"));

  constructor() {
    const options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe", `--user-data-dir=${this.#profile}`];
    this.process = spawn("chromium", options, { stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"] });
    process.once("exit", () => this.process.kill("SIGKILL"));
    let text = "";
    this.process.stdio[4].setEncoding("utf8").on("data", (piece) => {
      const messages = (text + piece).split("\0");
      text = messages.pop();
      for (const { id, result, error } of messages.map((message) => JSON.parse(message))) this.#answers.get(id)?.(error ?? result);
    });
  }

  send(method, params = {}) {
    const id = this.#answers.size + 1;
    this.process.stdio[3].write(JSON.stringify({ id, method, params, sessionId: this.session }) + "\0");
    return new Promise((resolve) => this.#answers.set(id, resolve));
  }

  async open(url) {
    const { targetId } = await this.send("Target.createTarget", { url });
    this.session = (await this.send("Target.attachToTarget", { targetId, flatten: true })).sessionId;
  }

  /** The value of an expression in the page, as soon as it is true. */
  async until(expression) {
    for (let attempts = 0; attempts < 600; attempts += 1) {
      const { result } = await this.send("Runtime.evaluate", { expression });
      if (result?.value) return result.value;
      await sleep(50);
    }
    assert.fail(`not within 30 s: ${expression}`);
  }

  async close() {
    const ended = new Promise((resolve) => this.process.once("exit", resolve));
    this.process.kill("SIGKILL");
    await ended;
    rmSync(this.#profile, { recursive: true, force: true, maxRetries: 5 });
  }
}

let turnwise;
let site;
let worker;
let browser;
before(async () => {
  turnwise = await server();
  site = await program("node", ["server.mjs"], import.meta.url);
  browser = new Browser();
});
after(async () => {
  await browser?.close();
  await worker?.stop();
  await site?.stop();
  await turnwise.stop();
});

const TEXT = 'document.getElementById("text")?.textContent';

test("the page follows a job to its end, also after a reload", async () => {
  await browser.open(site.url);
  await browser.until(`${TEXT} === "Nothing has been started."`);
  await browser.send("Runtime.evaluate", { expression: 'document.getElementById("start").click()' });
  await browser.until(`location.hash && ${TEXT} === "Waiting"`);
  worker = await program("turnwise-worker", ["./jobs.mjs"], import.meta.url);
  await browser.until(`/^[1-9] of 10$/.test(${TEXT}) && document.getElementById("bar").value < 1`);
  await browser.send("Page.reload");
  await browser.until(`${TEXT} === "10 minutes are converted"`);
  assert.equal((await fetch(`${site.url}/events?id=unknown`)).status, 404);
});
