// Jobs that are added in the transaction of a database, and the relay that passes them on.
import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, afterEach, before, test } from "node:test";
import { promisify } from "node:util";
import mysql from "mysql2/promise";
import pg from "pg";
import { App, Client, TurnwiseError } from "turnwise-client";
import { MYSQL, POSTGRESQL, Relay, SQLITE, add, addJob, createTable, row } from "turnwise-client/outbox";
import { startMariadb, startPostgresql } from "./databases.mjs";
import { Proxy, TestServer, collect, sleep, until, working } from "./server.mjs";

const CLI = new URL("../dist/cli.js", import.meta.url).pathname;
const JOBS = new URL("fixtures/jobs.mjs", import.meta.url).pathname;
/** How many transactions the test of kills makes. */
const TRANSACTIONS = Number(process.env.TURNWISE_TEST_TRANSACTIONS ?? 2000);
// Node 20 has none.
const sqlite = await import("node:sqlite").catch(() => undefined);

let server;
let client;
let postgresql;
let mariadb;
let folder;
let types = 0;
let files = 0;
/** What is closed after a test. */
const opened = [];
before(async () => {
  folder = mkdtempSync(join(tmpdir(), "turnwise-test-"));
  server = await TestServer.start();
  client = server.client();
  postgresql = await startPostgresql();
  mariadb = await startMariadb();
});
afterEach(async () => {
  for (const close of opened.splice(0).reverse()) await close();
});
after(async () => {
  await server.stop();
  await postgresql?.stop();
  await mariadb?.stop();
  rmSync(folder, { recursive: true, force: true });
});

const newApp = () => new App({ type: `type${(types += 1)}`, client });

async function newProxy({ port } = server) {
  const proxy = await Proxy.start(port);
  opened.push(() => proxy.stop());
  return proxy;
}

function newRelay(database, options, at = client) {
  const relay = new Relay(database.connect, at, { say: () => {}, ...options });
  opened.push(() => (relay.stop(), relay.close()));
  return relay;
}

/** Starts `turnwise-worker`. */
function command(args, env = {}) {
  const child = spawn(process.execPath, [CLI, ...args], { env: { ...process.env, TURNWISE_SERVER: server.url, ...env }, stdio: ["ignore", "ignore", "pipe"] });
  const started = { child, lines: "", ended: new Promise((resolve) => child.once("exit", (code, signal) => resolve(code ?? signal))) };
  child.stderr.on("data", (data) => (started.lines += data));
  started.kill = () => (child.kill("SIGKILL"), started.ended);
  opened.push(started.kill);
  return started;
}

/** An empty outbox in SQLite. */
function inSqlite() {
  const file = join(folder, `app${(files += 1)}.db`);
  const open = () => {
    const connection = new sqlite.DatabaseSync(file, { timeout: 30_000 });
    opened.push(() => connection.isOpen && connection.close());
    return connection;
  };
  const connection = open();
  connection.exec("PRAGMA journal_mode = WAL");
  return {
    url: `sqlite:///${file}`,
    connection,
    connect: () => new sqlite.DatabaseSync(file),
    run: async (sql) => connection.exec(sql),
    all: async (sql) => connection.prepare(sql).all(),
  };
}

/** An empty outbox in PostgreSQL. */
async function inPostgresql() {
  const { url } = postgresql;
  const connection = new pg.Client(url);
  await connection.connect();
  opened.push(() => connection.end());
  await connection.query("DROP TABLE IF EXISTS turnwise_outbox, orders");
  return {
    url,
    connection,
    connect: () => new pg.Client(url),
    run: (sql) => connection.query(sql),
    all: async (sql) => (await connection.query(sql)).rows,
  };
}

/** An empty outbox in MariaDB. */
async function inMariadb() {
  const { url } = mariadb;
  const connection = await mysql.createConnection(url);
  opened.push(() => connection.end());
  await connection.query("DROP TABLE IF EXISTS turnwise_outbox, orders");
  return {
    url,
    connection,
    connect: () => mysql.createConnection(url),
    run: (sql) => connection.query(sql),
    all: async (sql) => (await connection.query(sql))[0],
  };
}

const DATABASES = [
  ["SQLite", inSqlite, () => !sqlite],
  ["PostgreSQL", inPostgresql, () => !postgresql],
  ["MariaDB", inMariadb, () => !mariadb],
];
for (const [name, make, missing] of DATABASES) {
  const withDatabase = (what, work) =>
    test(`${name}: ${what}`, async (t) => {
      if (missing()) return t.skip(`there is no ${name}`);
      const database = await make();
      await createTable(database.connection);
      await createTable(database.connection);
      await database.run("CREATE TABLE orders (id bigint)");
      await work(database, t);
    });

  withDatabase("a job is there if its transaction commits", async (database) => {
    const app = newApp();
    const sum = app.task({ name: "sum", tags: ({ a }) => [`a${a}`] }, ({ a, b }) => a + b);
    await database.run("BEGIN");
    const lost = await add(database.connection, sum, { a: 1, b: 2 });
    await database.run("ROLLBACK");
    await database.run("BEGIN");
    const committed = await add(database.connection, sum, { a: 3, b: 4 }, { tenant: "acme", delay_ms: 3_600_000 });
    const alone = await addJob(database.connection, { type: app.type, task: "sum", options: { a: 1, b: 1 }, id: "é" });
    const late = await addJob(database.connection, { type: app.type, delay_ms: 1 });
    await database.run("COMMIT");
    const relay = newRelay(database);
    const { waiting, lag, refused } = await relay.stats();
    assert.deepEqual([waiting, refused], [3, 0]);
    assert.ok(lag >= 0 && lag < 60, String(lag));
    await sleep(10);
    assert.ok((await relay.stats()).lag > lag);
    assert.deepEqual([await relay.step(), await relay.step()], [3, 0]);
    assert.deepEqual(await relay.stats(), { waiting: 0, lag: 0, refused: 0 });
    const ids = (await collect(client.jobs({ type: app.type }))).map(({ id }) => id);
    assert.deepEqual(ids.sort(), [committed.id, alone, late].sort());
    assert.ok(!ids.includes(lost.id));
    const job = await committed.status();
    assert.deepEqual([job.state, job.tenant, job.tags], ["delayed", "acme", ["a3"]]);
    // The delay counts from the transaction on, and not from the relay's request.
    assert.equal((await client.job(app.type, late)).state, "pending");
    await working(app, { client }, async () => assert.equal(await client.result(app.type, "é", { timeout: 20 }), 2));
  });

  withDatabase("a refused job holds up no other", async (database) => {
    const { type } = newApp();
    for (let n = 0; n < 20; n += 1) {
      await addJob(database.connection, { type, options: { n }, id: `n${n}`, ...(n === 3 || n === 11 ? { group: type } : {}) });
    }
    await database.run("INSERT INTO turnwise_outbox (job) VALUES ('no JSON')");
    const lines = [];
    const relay = newRelay(database, { batch: 50, say: (line) => lines.push(line) });
    assert.equal(await relay.step(), 21);
    assert.equal((await collect(client.jobs({ type }))).length, 18);
    assert.deepEqual(await relay.stats(), { waiting: 0, lag: 0, refused: 3 });
    const problems = (await database.all("SELECT problem FROM turnwise_outbox ORDER BY id")).map(({ problem }) => problem);
    assert.equal(problems.length, 3);
    assert.match(problems[0], /there is no group/);
    assert.equal(lines.length, 3);
    await client.group(type).create();
    await database.run("UPDATE turnwise_outbox SET problem = NULL WHERE problem LIKE '%group%'");
    assert.equal(await relay.step(), 2);
    assert.equal((await collect(client.jobs({ type }))).length, 20);
  });

  withDatabase("a tenant without room holds up no other", async (database) => {
    const own = await TestServer.start("[limits]\nwaiting_jobs = 3\n");
    try {
      // Operators have no such limit.
      const client = new Client({ server: own.url, token: await own.token(["client:*"], await own.token(["admin"])) });
      const add = (tenant) => addJob(database.connection, { type: "mail", tenant });
      for (let n = 0; n < 9; n += 1) await add("full");
      for (let n = 0; n < 6; n += 1) await add(`other${n % 3}`);
      // The rows of the first batch are all of one tenant.
      const relay = newRelay(database, { batch: 8 }, client);
      while ((await relay.step()) > 0);
      const added = async (tenant) => (await collect(client.jobs({ type: "mail", tenant }))).length;
      assert.deepEqual(await Promise.all(["full", "other0", "other1", "other2"].map(added)), [3, 2, 2, 2]);
      // What comes later does not wait for it, either.
      await add("late");
      await relay.step();
      assert.equal(await added("late"), 1);
      assert.deepEqual(await relay.stats().then(({ waiting, refused }) => [waiting, refused]), [6, 0]);
      // When there is room, they are added.
      for (const left of [3, 0]) {
        for (const { id } of await collect(client.jobs({ type: "mail", tenant: "full" }))) await client.remove("mail", id);
        await newRelay(database, {}, client).step();
        assert.equal((await relay.stats()).waiting, left);
      }
    } finally {
      await own.stop();
    }
  });

  withDatabase("an error of the server, or of the token, marks no row", async (database) => {
    const { type } = newApp();
    await addJob(database.connection, { type });
    const proxy = await newProxy();
    const relay = newRelay(database, {}, new Client({ server: proxy.url, retryFor: 0.05 }));
    for (const [status, error] of [[500, "internal"], [503, "unavailable"], [401, "unauthorized"], [403, "forbidden"], [404, undefined]]) {
      proxy.fault = () => ({ status, body: error ? JSON.stringify({ error, reason: "the test", hint: "" }) : "<html>" });
      await assert.rejects(relay.step(), (thrown) => thrown instanceof TurnwiseError && thrown.error === (error ?? "foreign_answer"));
      assert.equal((await relay.stats()).waiting, 1);
    }
    proxy.fault = () => undefined;
    assert.equal(await relay.step(), 1);
    assert.equal((await collect(client.jobs({ type }))).length, 1);
  });

  withDatabase("rows wait while the server is away, and while the table is missing", async (database) => {
    const { type } = newApp();
    const own = await TestServer.start();
    opened.push(() => own.stop());
    await own.kill();
    await addJob(database.connection, { type, id: "a" });
    const lines = [];
    const relay = newRelay(database, { say: (line) => lines.push(line) }, own.client({ retryFor: 0.05 }));
    const running = relay.run();
    await until(() => lines.some((line) => line.includes("no answer")));
    await database.run("ALTER TABLE turnwise_outbox RENAME TO gone");
    await until(() => lines.some((line) => /no such table|does not exist|doesn't exist/.test(line)));
    await database.run("ALTER TABLE gone RENAME TO turnwise_outbox");
    await own.up();
    await until(async () => (await collect(own.client().jobs({ type }))).length === 1, 60);
    relay.stop();
    await running;
    assert.deepEqual(await database.all("SELECT id FROM turnwise_outbox"), []);
  });

  withDatabase("what could run twice, or has a wrong input, is refused at once", async (database) => {
    const app = newApp();
    const task = app.task({ name: "task" }, () => {});
    for (const terms of [{ if_exists: "again" }, { unique: { mode: "until_end", on_conflict: "after" } }]) {
      await assert.rejects(async () => add(database.connection, task, {}, terms), /a relay may add a job twice/);
    }
    const valid = (validate) => app.task({ name: `v${app.tasks.size}`, input: { "~standard": { version: 1, vendor: "test", validate } } }, () => {});
    const check = (value) => (value.to ? { value } : { issues: [{ message: "is missing", path: ["to"] }] });
    await assert.rejects(async () => add(database.connection, valid(check), {}), /to: is missing/);
    await add(database.connection, valid(check), { to: "a" });
    const later = add.bind(undefined, database.connection, valid(async (value) => check(value)));
    if (name === "SQLite") {
      // The transaction may be over when the schema has its answer.
      assert.throws(() => later({ to: "a" }), /validates later/);
    } else {
      await assert.rejects(later({}), /to: is missing/);
      await later({ to: "a" });
    }
    assert.equal((await database.all("SELECT id FROM turnwise_outbox")).length, name === "SQLite" ? 1 : 2);
    assert.throws(() => newRelay(database, { batch: 0 }), /1 to 1000/);
  });

  withDatabase("killed relays and lost answers lose no job, and add none twice", async (database) => {
    // A worker that a busy machine holds up would be removed, and its jobs would run again.
    const own = await TestServer.start("[workers]\nhealth_timeout = 120\n");
    opened.push(() => own.stop());
    const client = own.client();
    const app = new App({ type: "note", client });
    const ran = [];
    const note = app.task({ name: "note" }, (_, context) => void ran.push(context.id));
    const proxy = await newProxy(own);
    proxy.fault = () => [undefined, undefined, Math.random() * 100, "drop-answer"][Math.floor(Math.random() * 4)];
    const committed = [];
    let writing = true;
    let kills = 0;
    const write = async () => {
      for (let n = 0; n < TRANSACTIONS; n += 1) {
        // However fast the machine is, there are transactions before and after the first kills.
        if (n === TRANSACTIONS >> 1) await until(() => kills > 0, 120);
        await database.run("BEGIN");
        await database.run(`INSERT INTO orders (id) VALUES (${n})`);
        const { id } = await add(database.connection, note, { n });
        const fails = n % 10 === 3;
        await database.run(fails ? "ROLLBACK" : "COMMIT");
        if (!fails) committed.push(id);
        // SQLite would not let the test do anything else.
        if (n % 10 === 0) await sleep(1);
      }
      writing = false;
    };
    const observer = newRelay(database, {}, client);
    const passed = async () => committed.length - (await observer.stats()).waiting;
    const deadline = performance.now() + 120_000 + TRANSACTIONS * 20;
    await working(app, { client, slots: 64 }, async (_, lines) => {
      const written = write();
      while (writing || (await observer.stats()).waiting > 0) {
        const relays = [1, 2].map(() => command(["--outbox", database.url], { TURNWISE_SERVER: proxy.url }));
        const before = await passed();
        // Killed at any moment after they have begun.
        await until(async () => (await passed()) > before || (await observer.stats()).waiting === 0, 60);
        await sleep(Math.random() * 1000);
        for (const relay of relays) await relay.kill();
        kills += 2;
        assert.ok(performance.now() < deadline);
      }
      await written;
      await until(async () => ran.length >= committed.length, 60 + TRANSACTIONS / 100);
      for (const state of ["pending", "running"]) {
        await until(async () => (await collect(client.jobs({ type: app.type, state }))).length === 0);
      }
      assert.ok(!lines.some((line) => line.includes("removed")), lines.join("\n"));
    });
    assert.ok(kills >= 4, String(kills));
    assert.equal(committed.length, TRANSACTIONS - Math.ceil((TRANSACTIONS - 3) / 10));
    assert.deepEqual(ran.sort(), committed.sort());
  });

  withDatabase("the worker command runs a relay, beside workers or alone", async (database) => {
    const app = newApp();
    const notes = join(folder, app.type);
    const short = app.task({ name: "short" }, () => {});
    const both = command([JOBS, "--grace", "1"], { TEST_TYPE: app.type, TEST_NAME: "w", TEST_NOTES: notes, TURNWISE_OUTBOX: database.url });
    const handle = await add(database.connection, short, { ms: 1 });
    await until(() => client.job(app.type, handle.id).catch(() => undefined), 60);
    assert.equal(await handle.result({ timeout: 60 }), "done");
    both.child.kill("SIGTERM");
    assert.equal(await both.ended, 0, both.lines);
    const alone = command(["--outbox", database.url]);
    const late = await add(database.connection, short, { ms: 1 });
    await until(() => client.job(app.type, late.id).catch(() => undefined), 60);
    alone.child.kill("SIGTERM");
    assert.equal(await alone.ended, 0, alone.lines);
  });

  withDatabase("the relay of either client passes on the rows of both", async (database, t) => {
    const { type } = newApp();
    const python = process.env.TURNWISE_TEST_PYTHON ?? "python3";
    const run = (code) => promisify(execFile)(python, ["-c", `import sys\nfrom turnwise_client import Client, outbox\n${code}`, database.url, server.url, type]);
    const open = {
      SQLite: "import sqlite3; c = sqlite3.connect(sys.argv[1][10:])",
      PostgreSQL: "import psycopg; c = psycopg.connect(sys.argv[1])",
      MariaDB: "import pymysql; from urllib.parse import urlsplit; u = urlsplit(sys.argv[1]); c = pymysql.connect(host=u.hostname, port=u.port, user='root', database='test')",
    }[name];
    const found = await run("").catch((error) => assert.ok(!process.env.CI, error.stderr));
    if (!found) return t.skip("the client for Python is not installed");
    await addJob(database.connection, { type, id: "ours" });
    await run("r = outbox.Relay(sys.argv[1], Client(sys.argv[2])); assert r.step() == 1; r.close()");
    assert.equal((await client.job(type, "ours")).state, "pending");
    await run(`${open}; outbox.add(c, sys.argv[3], {"a": "é"}, id="theirs", delay=0.001); c.commit()`);
    const relay = newRelay(database);
    assert.equal(await relay.step(), 1);
    assert.deepEqual((await client.job(type, "theirs")).options, { a: "é" });
  });

  // SQLite has no locks of rows: there, two relays pass on the same ones.
  if (name === "SQLite") continue;
  withDatabase("two relays take different rows, and a lost connection gives them back", async (database) => {
    const { type } = newApp();
    for (let n = 0; n < 20; n += 1) await addJob(database.connection, { type });
    const proxy = await newProxy();
    proxy.fault = () => "hang";
    let connection;
    const connect = async () => (connection = await database.connect());
    const hangs = newRelay({ connect }, {}, new Client({ server: proxy.url, retryFor: 0.05 }));
    const running = hangs.run();
    await until(() => proxy.requests.length === 1);
    // The application adds rows meanwhile.
    for (let n = 0; n < 5; n += 1) await addJob(database.connection, { type });
    const other = newRelay(database);
    assert.equal(await other.step(), 5);
    connection.connection.stream.destroy();
    await until(async () => (await other.step()) === 20);
    hangs.stop();
    // Its request ends, and so does it.
    proxy.server.closeAllConnections();
    await running;
    assert.equal((await collect(client.jobs({ type }))).length, 25);
  });
}

test("SQLite: a relay waits for a writer without holding up the process", async (t) => {
  if (!sqlite) return t.skip("there is no SQLite");
  for (const mode of ["WAL", "DELETE"]) {
    const database = inSqlite();
    await database.run(`PRAGMA journal_mode = ${mode}`);
    await createTable(database.connection);
    const { type } = newApp();
    await addJob(database.connection, { type });
    await database.run("BEGIN EXCLUSIVE");
    const relay = newRelay(database);
    const step = relay.step();
    // A timer of this process ends the transaction: it would never fire if the relay waited in the event loop.
    await sleep(200);
    await database.run("COMMIT");
    assert.equal(await step, 1);
    assert.equal((await relay.stats()).waiting, 0);
  }
});

test("PostgreSQL: a row notifies the relay, unless it states `notify: false`", async (t) => {
  if (!postgresql) return t.skip("there is no PostgreSQL");
  const database = await inPostgresql();
  await createTable(database.connection);
  const listener = new pg.Client(database.url);
  await listener.connect();
  opened.push(() => listener.end());
  let notifications = 0;
  listener.on("notification", () => (notifications += 1));
  await listener.query("LISTEN turnwise_outbox");
  const { type } = newApp();
  await addJob(database.connection, { type }, { notify: false });
  // A connection has its notifications before the answer to a later query.
  await listener.query("SELECT 1");
  assert.equal(notifications, 0);
  // Only a notification ends the wait of the relay.
  const relay = newRelay(database, { poll: 3600 });
  const running = relay.run();
  const passed = () => until(async () => (await database.all("SELECT id FROM turnwise_outbox")).length === 0, 60);
  await passed();
  for (let n = 0; n < 20; n += 1) {
    await addJob(database.connection, { type });
    await passed();
  }
  assert.equal((await collect(client.jobs({ type }))).length, 21);
  relay.stop();
  await running;
});

test("PostgreSQL: a pool is refused, and its clients are not", async (t) => {
  if (!postgresql) return t.skip("there is no PostgreSQL");
  const database = await inPostgresql();
  await createTable(database.connection);
  const pool = new pg.Pool({ connectionString: database.url });
  opened.push(() => pool.end());
  await assert.rejects(async () => addJob(pool, { type: "a" }), /a pool has no transaction/);
  const member = await pool.connect();
  await member.query("BEGIN");
  await addJob(member, { type: "a" });
  await member.query("ROLLBACK");
  member.release();
  assert.deepEqual(await database.all("SELECT id FROM turnwise_outbox"), []);
});

test("both clients have the same tables, and a row is what a request has", () => {
  const python = readFileSync(new URL("../../python/src/turnwise_client/outbox.py", import.meta.url), "utf8");
  const ours = { SQLITE, POSTGRESQL, MYSQL };
  const theirs = [...python.matchAll(/^([A-Z]+) = """\\\n(CREATE TABLE [^]*?)"""/gm)];
  assert.ok(theirs.length >= 2);
  for (const [, name, text] of theirs) assert.equal(ours[name], text, name);
  const { id, job } = row({ type: "a", options: { text: "\ud800" }, priority: 1 });
  assert.deepEqual(JSON.parse(job), { type: "a", options: { text: "\ud800" }, priority: 1, id });
  assert.match(id, /^[0-9a-f]{32}$/);
});

test("the worker command names what an outbox needs", async () => {
  for (const [args, problem] of [[["--outbox", "oracle://x"], /an outbox is/], [[], /name one module, or --outbox/]]) {
    const wrong = command(args);
    assert.equal(await wrong.ended, 2);
    assert.match(wrong.lines, problem);
  }
});
