// A real server for the tests of your own code, in memory, with a clock that the test moves.
import { AssertionError } from "node:assert";
import { spawn, type ChildProcess } from "node:child_process";
import type { Socket } from "node:net";
import process from "node:process";
import { createInterface } from "node:readline";
import { isDeepStrictEqual } from "node:util";
import type { App, Task } from "./app.js";
import { Client } from "./client.js";
import { TurnwiseError } from "./errors.js";
import type { Http } from "./http.js";
import type { Accepted, AcceptedJob, EndedRun, Job, Registered } from "./models.js";
import { Run, type End, type RunHost } from "./run.js";
import { registration } from "./worker.js";

/** A task that adds itself again would run for ever. */
const MAX_RUNS = 10_000;
const STOP_TIMEOUT_MS = 10_000;
/** A clock is moved through all instants of the schedules. */
const ADVANCE_TIMEOUT_MS = 300_000;
const UNITS_MS = { days: 86_400_000, hours: 3_600_000, minutes: 60_000, seconds: 1_000 } as const;
/** What a test may have stated for other servers. */
const VARIABLES = ["TURNWISE_SERVER", "TURNWISE_TOKEN"] as const;

export interface Advance {
  days?: number;
  hours?: number;
  minutes?: number;
  seconds?: number;
  /** Whether running jobs grow older by the same time: those that exceed their `timeout` are taken back. */
  timeouts?: boolean;
}

/**
 * Starts a server. Until it stops, it is the server of these apps, and of all clients that read `TURNWISE_SERVER`. The schedules of the
 * apps' tasks are written. The program is that of `TURNWISE_BIN`, or `turnwise` on the `PATH`. It also ends when this process does.
 */
export async function server(...apps: App[]): Promise<Server> {
  const { child, url } = await start();
  const running = new Server(child, url, apps);
  try {
    await running.connect();
  } catch (error) {
    await running.stop();
    throw error;
  }
  return running;
}

/** A running server. `server` starts one. */
export class Server {
  readonly url: string;
  readonly client: Client;
  readonly #child: ChildProcess;
  readonly #apps: readonly App[];
  /** What held before this server. */
  #restore: (() => void)[] = [];

  constructor(child: ChildProcess, url: string, apps: readonly App[]) {
    this.#child = child;
    this.url = url;
    this.#apps = apps;
    for (const name of VARIABLES) {
      const before = process.env[name];
      this.#restore.push(() => {
        if (before === undefined) delete process.env[name];
        else process.env[name] = before;
      });
      delete process.env[name];
    }
    process.env["TURNWISE_SERVER"] = url;
    this.client = new Client();
  }

  /** @internal Makes it the server of its apps. */
  async connect(): Promise<void> {
    for (const app of this.#apps) {
      const before = app.connect(this.client);
      this.#restore.push(() => app.connect(before));
      // The terms of its tasks hold from the first job on.
      if (app.tasks.size > 0) await (await Drain.begin(app, this.client)).leave();
      await app.putSchedules(this.client);
    }
  }

  /** Ends the server. */
  async stop(): Promise<void> {
    for (const restore of this.#restore.splice(0)) restore();
    if (this.#child.exitCode !== null || this.#child.signalCode !== null) return;
    const ended = new Promise((resolve) => this.#child.once("exit", resolve));
    this.#child.ref();
    this.#child.stdin?.end();
    const late = setTimeout(() => this.#child.kill("SIGKILL"), STOP_TIMEOUT_MS);
    await ended;
    clearTimeout(late);
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop();
  }

  /**
   * Moves the server's clock forward, as if this time had passed: delays and backoffs are over, each schedule has fired at each of its
   * instants, jobs that had to start have failed, old records are removed. Returns the server's time. Workers live in real time: they miss
   * no heartbeats, and their runs do not grow older unless `timeouts` is true. Without a time, it only does what is due already.
   */
  async advance(by: Advance = {}): Promise<Date> {
    const ms = Object.entries(UNITS_MS).reduce((sum, [unit, factor]) => sum + (by[unit as keyof typeof UNITS_MS] ?? 0) * factor, 0);
    const body = { by_ms: Math.round(ms), timeouts: by.timeouts ?? false };
    // It is not repeated: the clock would move twice.
    const more = { body, idempotent: false, timeout: ADVANCE_TIMEOUT_MS };
    const { now_us } = await this.client.call<{ now_us: number }>("POST", ["test", "advance"], more);
    return new Date(now_us / 1000);
  }

  /**
   * Runs all jobs of the apps that can run, one after the other, until none can; also those that they add. A job that waits for its time,
   * its backoff or another job stays. Returns the jobs that ran, as they are then.
   */
  async drain(): Promise<Job[]> {
    if (this.#apps.length === 0) throw new TypeError("the server knows no apps whose jobs it could run: server(app)");
    const ran = new Map<string, AcceptedJob & { type: string }>();
    const drains: Drain[] = [];
    try {
      for (const app of this.#apps.filter(({ tasks }) => tasks.size > 0)) drains.push(await Drain.begin(app, this.client));
      for (let before = -1; before < (before = drains.reduce((sum, { runs }) => sum + runs, 0)); ) {
        // What follows the ends of the jobs before.
        await this.advance();
        for (const drain of drains) await drain.run(ran);
      }
    } finally {
      for (const drain of drains) await drain.leave();
    }
    const jobs = [...ran.values()].map(({ type, id }) => this.client.job(type, id).catch(unlessGone));
    return (await Promise.all(jobs)).filter((job) => job !== undefined);
  }

  /** The jobs of a task that were added with these options, and perhaps others: oldest first, whatever has become of them. */
  async added<I>(task: Task<I, any, any>, payload: Partial<I> = {}): Promise<Job[]> {
    const wanted = Object.entries(JSON.parse(JSON.stringify(payload)));
    const jobs = await this.#jobs(task);
    return jobs.filter(({ options }) => wanted.every(([name, value]) => isDeepStrictEqual(options[name], value))).map(({ job }) => job);
  }

  /** Fails the test unless a job of this task was added with these options. Returns the latest such job. */
  async assertAdded<I>(task: Task<I, any, any>, payload: Partial<I> = {}): Promise<Job> {
    const found = (await this.added(task, payload)).at(-1);
    if (found) return found;
    const others = JSON.stringify((await this.#jobs(task)).map(({ options }) => options));
    throw new AssertionError({ message: `no job of ${task.name} was added with ${JSON.stringify(payload)}, but with ${others}` });
  }

  async #jobs(task: Task<any, any, any>): Promise<{ job: Job; options: Record<string, unknown> }[]> {
    const found = [];
    for await (const job of this.client.jobs({ type: task.app.type, order: "oldest" })) {
      if (job.task !== task.name) continue;
      found.push({ job, options: await this.client.call<Record<string, unknown>>("GET", ["jobs", job.type, job.id, "options"]) });
    }
    return found;
  }
}

/** A worker that runs the jobs of an app until none can run. */
class Drain implements RunHost {
  readonly app: App;
  readonly http: Http;
  readonly path: readonly string[];
  runs = 0;
  readonly #gone = new AbortController();
  readonly #pings: ReturnType<typeof setInterval>;
  #received = 0;

  constructor(app: App, http: Http, { worker, ping_interval_ms }: Registered) {
    this.app = app;
    this.http = http;
    this.path = ["workers", app.type, worker];
    this.#pings = setInterval(() => {
      this.#call("ping", "{}").catch((error: Error) => this.say(`no heartbeat: ${error.message}`));
    }, ping_interval_ms);
  }

  /** Registers it. */
  static async begin(app: App, { http }: Client): Promise<Drain> {
    const body = registration(app, 1, "drain");
    return new Drain(app, http, await http.call<Registered>({ method: "POST", path: ["workers", app.type], body }));
  }

  get gone(): AbortSignal {
    return this.#gone.signal;
  }

  say(line: string): void {
    console.warn(`turnwise ${this.app.type}: ${line}`);
  }

  expired(): void {
    this.#gone.abort(new TurnwiseError("expired_worker", "the server has removed this worker", ""));
  }

  /** Runs jobs until none can run, and notes them. */
  async run(ran: Map<string, AcceptedJob & { type: string }>): Promise<void> {
    for (;;) {
      const body = JSON.stringify({ received: this.#received, limit: 1, wait_ms: 0 });
      const { jobs } = await this.#call<Accepted>("accept", body);
      if (jobs.length === 0) return;
      for (const given of jobs) {
        this.runs += 1;
        if (this.runs > MAX_RUNS) throw new Error(`more than ${MAX_RUNS} runs: the last one was of ${given.id}`);
        this.#received = given.claim;
        ran.set(`${this.app.type}/${given.id}`, { ...given, type: this.app.type });
        const run = new Run(this, given);
        const end = await run.work();
        if (!run.lost) await this.#end(end);
      }
    }
  }

  async #end(end: End): Promise<void> {
    const { kind, run, text } = end;
    if (kind === "fail") {
      const { trace, reason } = JSON.parse(text) as { trace?: string; reason?: string };
      this.say(`${run.given.task} ${run.id} has failed: ${trace ?? reason}`);
    }
    let refusal: unknown;
    try {
      const { ended } = await this.#call<{ ended: EndedRun[] }>("end", `{"${kind}":[${text}]}`);
      const error = ended[0]?.error;
      if (!error) return;
      refusal = new TurnwiseError(error.error, error.reason, error.hint);
    } catch (error) {
      refusal = error;
    }
    // A result that is too large, for example.
    const other = refusal instanceof TurnwiseError && !refusal.isHalt ? end.otherwise?.(refusal) : undefined;
    if (!other) throw refusal;
    await this.#end(other);
  }

  async leave(): Promise<void> {
    clearInterval(this.#pings);
    this.#gone.abort();
    await this.http.call({ method: "POST", path: [...this.path, "leave"], body: {} });
  }

  #call<T>(what: string, body: string): Promise<T> {
    return this.http.call<T>({ method: "POST", path: [...this.path, what], body });
  }
}

/** Starts the program, and returns when it listens. */
async function start(): Promise<{ child: ChildProcess; url: string }> {
  const program = process.env["TURNWISE_BIN"] || "turnwise";
  // Ctrl-C in a terminal ends the test, which then ends the server.
  const child = spawn(program, ["--log", "error", "test-server"], { stdio: ["pipe", "pipe", "inherit"], detached: true });
  const lines = createInterface(child.stdout);
  const line = await new Promise<string>((resolve, reject) => {
    child.once("error", (error: NodeJS.ErrnoException) => {
      const missing = `there is no program ${program}: install \`turnwise\` on the PATH, or set TURNWISE_BIN to its path`;
      reject(error.code === "ENOENT" ? new Error(missing, { cause: error }) : error);
    });
    child.once("exit", (code, signal) => {
      reject(new Error(`${program} has ended with ${code ?? signal}: is it a release that has \`test-server\`?`));
    });
    lines.once("line", resolve);
  });
  // A test that does not stop its server ends nevertheless, and the server with it.
  child.unref();
  (child.stdin as Socket).unref();
  (child.stdout as unknown as Socket).unref();
  return { child, url: (JSON.parse(line) as { url: string }).url };
}

function unlessGone(error: unknown): undefined {
  if (!(error instanceof TurnwiseError) || error.status !== 404) throw error;
}
