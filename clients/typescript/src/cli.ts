#!/usr/bin/env node
import { existsSync } from "node:fs";
import { createRequire } from "node:module";
import { resolve } from "node:path";
import process from "node:process";
import { pathToFileURL } from "node:url";
import { parseArgs } from "node:util";
import { App, Client, TurnwiseError } from "./index.js";
import { Worker } from "./worker.js";

const HELP = `turnwise-worker MODULE [options]: runs the jobs of the apps that a module exports

  MODULE            a file, such as ./jobs.js, or the name of a package
  --slots N         jobs that run at the same time, for each app (8)
  --grace SECONDS   how long SIGTERM and Ctrl-C wait for the jobs that run (20)
  --server URL      the server (TURNWISE_SERVER, or http://127.0.0.1:7984)
  --name NAME       a name for people
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
        "no-schedules": { type: "boolean", default: false },
        help: { type: "boolean", short: "h", default: false },
      },
    });
  } catch (error) {
    throw new Usage((error as Error).message);
  }
}

async function appsOf(module: string): Promise<App[]> {
  const file = resolve(module);
  const found = existsSync(file) ? file : createRequire(resolve("package.json")).resolve(module);
  const exported: Record<string, unknown> = await import(pathToFileURL(found).href);
  const apps = new Set(Object.values(exported).filter(App.is));
  if (apps.size === 0) throw new Usage(`${module} exports no App`);
  return [...apps];
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
  if (module === undefined || positionals.length > 1) throw new Usage("name one module; --help shows the options");
  const slots = number(values.slots, "slots", 1);
  const grace = number(values.grace, "grace", 0);
  const { server, name } = values;
  // A server that is named here precedes those of the apps' own clients.
  const client = server === undefined ? undefined : new Client({ server });
  const schedules = !values["no-schedules"];
  const workers = (await appsOf(module)).map((app) => new Worker(app, { client, slots, grace, name, schedules }));

  let signals = 0;
  const stop = () => workers.forEach((worker) => worker.stop());
  for (const [signal, code] of Object.entries(SIGNALS)) {
    process.on(signal, () => {
      signals += 1;
      if (signals > 1) process.exit(128 + code);
      console.error(`turnwise-worker: ${signal}: takes no new jobs, and waits up to ${grace} s; a second signal ends it at once`);
      stop();
    });
  }
  // An error ends all workers: the others give their jobs back first.
  const ends = await Promise.allSettled(
    workers.map((worker) =>
      worker.run().catch((error: unknown) => {
        if (signals === 0) stop();
        throw error;
      }),
    ),
  );
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
