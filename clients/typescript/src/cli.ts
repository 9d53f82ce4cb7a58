#!/usr/bin/env node
import { existsSync } from "node:fs";
import { createRequire } from "node:module";
import { resolve } from "node:path";
import process from "node:process";
import { pathToFileURL } from "node:url";
import { parseArgs } from "node:util";
import { App, Client, TurnwiseError } from "./index.js";
import { Relay, type Connect } from "./outbox.js";
import { Worker } from "./worker.js";

const HELP = `turnwise-worker [MODULE] [options]: runs the jobs of the apps that a module exports

  MODULE            a file, such as ./jobs.js, or the name of a package. Not needed with --outbox
  --slots N         jobs that run at the same time, for each app (8)
  --grace SECONDS   how long SIGTERM and Ctrl-C wait for the jobs that run (20)
  --server URL      the server (TURNWISE_SERVER, or http://127.0.0.1:7984)
  --name NAME       a name for people
  --outbox URL      pass on the jobs of this outbox, too (TURNWISE_OUTBOX): postgresql://…, mysql://… or
                    sqlite:///file
  --no-schedules    do not write the schedules of the tasks
  --help            this text

The token is in TURNWISE_TOKEN. A second signal ends the worker at once.`;

class Usage extends Error {}

/** The number of the signal, as in the exit codes of shells. */
const SIGNALS = { SIGINT: 2, SIGTERM: 15 } as const;

function parse() {
  try {
    return parseArgs({
      allowPositionals: true,
      options: {
        slots: { type: "string", default: "8" },
        grace: { type: "string", default: "20" },
        server: { type: "string" },
        name: { type: "string" },
        outbox: { type: "string" },
        "no-schedules": { type: "boolean", default: false },
        help: { type: "boolean", short: "h", default: false },
      },
    });
  } catch (error) {
    throw new Usage((error as Error).message);
  }
}

/** A package of the program that runs here. */
function packageOf(name: string): string {
  return createRequire(resolve("package.json")).resolve(name);
}

async function appsOf(module: string): Promise<App[]> {
  const file = resolve(module);
  const found = existsSync(file) ? file : packageOf(module);
  const exported: Record<string, unknown> = await import(pathToFileURL(found).href);
  const apps = new Set(Object.values(exported).filter(App.is));
  if (apps.size === 0) throw new Usage(`${module} exports no App`);
  return [...apps];
}

/** What connects to the database of an outbox. */
async function connector(url: string): Promise<Connect> {
  if (/^postgres(ql)?:\/\//.test(url)) {
    const { default: pg } = await driver(() => import(pathToFileURL(packageOf("pg")).href), "an outbox in PostgreSQL needs pg: npm install pg");
    // A connection that the network has lost is noticed by its time limit.
    return () => new pg.Client({ connectionString: url, connectionTimeoutMillis: 10_000, query_timeout: 30_000, keepAlive: true });
  }
  if (/^(mysql|mariadb):\/\//.test(url)) {
    const { default: mysql } = await driver(() => import(pathToFileURL(packageOf("mysql2/promise")).href), "an outbox in MySQL needs mysql2: npm install mysql2");
    return () => mysql.createConnection({ uri: url, connectTimeout: 10_000 });
  }
  if (!url.startsWith("sqlite:///")) throw new Usage("an outbox is `postgresql://…`, `mysql://…` or `sqlite:///file`");
  // The types of Node 20 do not have it.
  const sqlite: string = "node:sqlite";
  const { DatabaseSync } = await driver(() => import(sqlite), "an outbox in SQLite needs Node 22 or later");
  const file = url.slice("sqlite:///".length);
  return () => {
    // It would be created.
    if (!existsSync(file)) throw new Error(`there is no file ${file}`);
    return new DatabaseSync(file);
  };
}

async function driver<T>(load: () => Promise<T>, otherwise: string): Promise<T> {
  return load().catch((error: Error) => {
    throw new Usage(`${otherwise} (${error.message})`);
  });
}

function number(text: string, name: string, least: number): number {
  const value = Number(text);
  if (!Number.isFinite(value) || value < least || text.trim() === "") throw new Usage(`--${name} is a number from ${least} on`);
  return value;
}

async function main(): Promise<void> {
  const { values, positionals } = parse();
  if (values.help) {
    console.log(HELP);
    return;
  }
  const [module] = positionals;
  const outbox = values.outbox ?? process.env["TURNWISE_OUTBOX"];
  if (positionals.length > 1 || (module === undefined && !outbox)) throw new Usage("name one module, or --outbox; --help shows the options");
  const slots = number(values.slots, "slots", 1);
  const grace = number(values.grace, "grace", 0);
  const { server, name } = values;
  // A server that is named here precedes those of the apps' own clients.
  const client = server === undefined ? undefined : new Client({ server });
  const schedules = !values["no-schedules"];
  const apps = module === undefined ? [] : await appsOf(module);
  const workers = apps.map((app) => new Worker(app, { client, slots, grace, name, schedules }));
  const relays = outbox ? [new Relay(await connector(outbox), client ?? new Client())] : [];

  let signals = 0;
  const stop = () => [...workers, ...relays].forEach((one) => one.stop());
  for (const [signal, code] of Object.entries(SIGNALS)) {
    process.on(signal, () => {
      signals += 1;
      if (signals > 1) process.exit(128 + code);
      console.error(`turnwise-worker: ${signal}: takes no new jobs, and waits up to ${grace} s; a second signal ends it at once`);
      stop();
    });
  }
  const passing = relays.map((relay) => relay.run());
  // An error ends all workers: the others give their jobs back first.
  const ends = await Promise.allSettled(
    workers.map((worker) =>
      worker.run().catch((error: unknown) => {
        if (signals === 0) stop();
        throw error;
      }),
    ),
  );
  // A relay beside workers ends with them: they may be drained.
  if (workers.length > 0) relays.forEach((relay) => relay.stop());
  await Promise.all(passing);
  const failed = ends.find((end) => end.status === "rejected");
  if (failed) throw failed.reason;
}

try {
  await main();
  // Functions that did not end, and what they hold, do not keep the process.
  process.exit(0);
} catch (error) {
  if (error instanceof TurnwiseError || error instanceof Usage) console.error(`turnwise-worker: ${error.message}`);
  else console.error("turnwise-worker:", error);
  process.exit(error instanceof Usage ? 2 : 1);
}
