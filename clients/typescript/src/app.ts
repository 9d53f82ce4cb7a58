import { Client, type AddTerms, type Cancellable, type Handle } from "./client.js";
import type { Context } from "./context.js";
import { TurnwiseError, milliseconds } from "./errors.js";
import type { Middleware } from "./middleware.js";
import type { Backoff, Locks, NewJob, PutSchedule, TaskTerms, Unique } from "./models.js";
import { validate, type InputOf, type OutputOf, type StandardSchema } from "./standard.js";

type MaybePromise<T> = T | Promise<T>;
/** A value, or how it follows from the input of a job. */
type Of<I, T> = T | ((input: I) => T);

/** The waits after crashes, in seconds: each one, the same one, or growing ones. */
export type Waits = number | readonly number[] | { first: number; most: number; factor?: number };

/** When a task runs by itself: a cron expression with a time zone behind it, or more. */
export type TaskSchedule = string | (Omit<PutSchedule, "job"> & { name?: string; options?: unknown });

/** Options of a task. Times are in seconds. What is left out is what holds for the type, or the server's setting. */
export interface TaskOptions<I = unknown> {
  name: string;
  /** The number of the last attempt; 0 retries without limit. */
  max_attempts?: number;
  /** The waits between attempts. */
  backoff?: Waits;
  /** Whether each wait is up to a tenth longer. */
  jitter?: boolean;
  /** The longest run. */
  timeout?: number;
  /** The longest time between two reports of a run. */
  heartbeat_timeout?: number;
  /** A job fails unless it starts within this time. */
  start_within?: number;
  /** How long the record of a job is kept after its end. */
  keep?: number;
  max_snoozes?: number;
  on_lost?: "count" | "requeue";
  /** Classes of errors after which a job is not retried. */
  final_errors?: string[];
  /** The most jobs of this task that one worker runs at the same time. */
  slots?: number;
  priority?: number;
  tags?: Of<I, string[]>;
  unique?: Of<I, Unique>;
  locks?: Of<I, Locks>;
  /** How many jobs start per period: `100/60s`, or `100/60s:name` to share the rate `name` with others. */
  rate?: string;
  schedule?: TaskSchedule;
}

/** The function of a task. */
export type TaskFunction<I, R> = (input: I, context: Context) => MaybePromise<R>;

export interface AppOptions {
  /** The type of the jobs, which is the queue that their workers serve. */
  type: string;
  /** The client that adds jobs. Otherwise one of the environment, made at its first use. */
  client?: Client;
  /** What is done around the runs of its tasks, and around the adds of its client. A client that is stated here has middleware of its own. */
  middleware?: readonly Middleware[];
}

const BRAND = Symbol.for("turnwise-client/App");

/** The tasks of one type of jobs. It has no connection, and starts nothing. */
export class App {
  readonly type: string;
  readonly tasks: Map<string, Task<any, any, any>> = new Map();
  readonly [BRAND] = true;
  readonly middleware: readonly Middleware[];
  #client: Client | undefined;

  constructor(options: AppOptions) {
    this.type = options.type;
    this.middleware = options.middleware ?? [];
    this.#client = options.client;
  }

  /** Whether a value is an app, also one of another copy of this package. */
  static is(value: unknown): value is App {
    return typeof value === "object" && value !== null && BRAND in value;
  }

  get client(): Client {
    this.#client ??= new Client({ middleware: this.middleware });
    return this.#client;
  }

  /** Makes this the client of the app, in place of the one that it returns. */
  connect(client: Client | undefined): Client | undefined {
    const before = this.#client;
    this.#client = client;
    return before;
  }

  /** Makes a function run the jobs of a task. With `input`, a Standard Schema, jobs are validated when they are added and run. */
  task<S extends StandardSchema<any, any>, O extends StandardSchema<any, any>>(
    options: TaskOptions<InputOf<S>> & { input: S; output: O },
    fn: TaskFunction<OutputOf<S>, InputOf<O>>,
  ): Task<InputOf<S>, OutputOf<O>, OutputOf<S>>;
  task<S extends StandardSchema<any, any>, R>(
    options: TaskOptions<InputOf<S>> & { input: S },
    fn: TaskFunction<OutputOf<S>, R>,
  ): Task<InputOf<S>, Awaited<R>, OutputOf<S>>;
  task<I, R>(options: TaskOptions<NoInfer<I>>, fn: TaskFunction<I, R>): Task<I, Awaited<R>, I>;
  task(options: TaskOptions<any> & { input?: StandardSchema<any, any>; output?: StandardSchema<any, any> }, fn: TaskFunction<any, any>): Task<any, any, any> {
    if (this.tasks.has(options.name)) throw new TypeError(`the app has two tasks with the name ${options.name}`);
    const task = new Task<any, any, any>(this, options, fn);
    this.tasks.set(options.name, task);
    return task;
  }

  /** Writes the schedules of all tasks. A worker does this when it starts. */
  async putSchedules(client = this.client, more: Cancellable = {}): Promise<void> {
    for (const task of this.tasks.values()) {
      const schedule = task.schedule();
      if (schedule) await client.schedule(schedule.name).put(schedule.terms, more);
    }
  }
}

/** A task: adds jobs, and runs them. */
export class Task<I, R, P = I> {
  readonly app: App;
  readonly options: TaskOptions<I> & { input?: StandardSchema<I, P>; output?: StandardSchema<any, R> };
  /** The function itself, for tests. */
  readonly fn: TaskFunction<P, unknown>;

  constructor(app: App, options: Task<I, R, P>["options"], fn: TaskFunction<P, unknown>) {
    this.app = app;
    this.options = options;
    this.fn = fn;
  }

  get name(): string {
    return this.options.name;
  }

  /** Adds a job with this input. `terms` precede the options of the task. */
  async add(input: I, terms: Omit<AddTerms, "task"> & Cancellable & { client?: Client } = {}): Promise<Handle<R>> {
    const { client = this.app.client, signal, ...others } = terms;
    const { type, options, ...job } = await this.job(input, others);
    return client.add<R>(type, options, job as AddTerms, { signal });
  }

  /** Adds a job for each input. */
  async addMany(inputs: readonly I[], terms: Omit<AddTerms, "task" | "id"> & Cancellable & { client?: Client } = {}): Promise<Handle<R>[]> {
    const { client = this.app.client, signal, ...others } = terms;
    const jobs = await Promise.all(inputs.map((input) => this.job(input, others)));
    return client.addMany<R>(jobs, { signal });
  }

  /** The job that `add` adds: for `Client.addMany`, groups and dependencies. */
  async job(input: I, terms: Omit<NewJob, "type" | "task" | "options"> = {}): Promise<NewJob> {
    if (this.options.input) await validate(this.options.input, input, `the input of ${this.name}`);
    return this.stated(input, terms);
  }

  /** @internal The same for an input that is valid. */
  stated(input: I, terms: Omit<NewJob, "type" | "task" | "options">): NewJob {
    return { ...this.#stated(input), ...terms, type: this.app.type, task: this.name, options: input === undefined ? {} : input };
  }

  /** @internal What holds for the jobs of this task, as a worker states it when it registers. */
  terms(): TaskTerms {
    const { options } = this;
    const terms: Record<string, unknown> = {
      max_attempts: options.max_attempts,
      backoff: options.backoff === undefined ? undefined : wireBackoff(options.backoff),
      jitter: options.jitter,
      timeout_ms: wireTime(options.timeout),
      heartbeat_timeout_ms: wireTime(options.heartbeat_timeout),
      start_within_ms: wireTime(options.start_within),
      keep_ms: wireTime(options.keep),
      max_snoozes: options.max_snoozes,
      on_lost: options.on_lost,
      final_errors: options.final_errors,
    };
    return Object.fromEntries(Object.entries(terms).filter(([, term]) => term !== undefined)) as TaskTerms;
  }

  /** @internal The schedule of this task, if it has one. */
  schedule(): { name: string; terms: PutSchedule } | undefined {
    const { schedule } = this.options;
    if (schedule === undefined) return undefined;
    const given = typeof schedule === "string" ? { when: cron(schedule) } : schedule;
    const { name = `${this.app.type}.${this.name}`, options = {}, ...terms } = given as Exclude<TaskSchedule, string>;
    const job = { ...this.#stated(options as I), type: this.app.type, task: this.name, options };
    return { name, terms: { ...terms, job } };
  }

  /** What the options of the task state for each of its jobs. */
  #stated(input: I): Partial<NewJob> {
    const { priority, tags, unique, locks, rate } = this.options;
    const stated: Partial<NewJob> = {};
    if (priority !== undefined) stated.priority = priority;
    if (tags !== undefined) stated.tags = of(tags, input);
    if (unique !== undefined) stated.unique = of(unique, input);
    if (locks !== undefined) stated.locks = of(locks, input);
    if (rate !== undefined) stated.reason = [`rate:${rate.includes(":") ? rate : `${rate}:${this.app.type}.${this.name}`}`];
    return stated;
  }
}

function of<I, T>(given: Of<I, T>, input: I): T {
  return typeof given === "function" ? (given as (input: I) => T)(input) : given;
}

function wireTime(seconds: number | undefined): number | undefined {
  return seconds === undefined ? undefined : milliseconds(seconds);
}

function wireBackoff(waits: Waits): Backoff {
  if (typeof waits === "number") return { fixed_ms: milliseconds(waits) } as Backoff;
  if ("first" in waits) {
    const factor = waits.factor === undefined ? {} : { factor: waits.factor };
    return { exponential: { first_ms: milliseconds(waits.first), most_ms: milliseconds(waits.most), ...factor } } as Backoff;
  }
  return { list_ms: waits.map(milliseconds) } as Backoff;
}

/** A cron expression, and the time zone behind it: `30 2 * * * Europe/Berlin`. */
function cron(text: string): PutSchedule["when"] {
  const fields = text.trim().split(/\s+/);
  const last = fields.at(-1) ?? "";
  const zoned = fields.length > 5 && /^[A-Za-z_]+\/[A-Za-z_/+\-0-9]+$|^(UTC|GMT)$/.test(last);
  if (fields.length < 5) throw new TurnwiseError("invalid_input", `\`${text}\` is no cron expression`, "it has at least five fields");
  return zoned ? { cron: fields.slice(0, -1).join(" "), zone: last } : { cron: fields.join(" ") };
}
