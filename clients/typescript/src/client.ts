import { Adds, type NewAdd } from "./adds.js";
import { JobFailed, TurnwiseError, milliseconds } from "./errors.js";
import { Group, Schedule } from "./groups.js";
import { Http, foreign, json, type Answer, type Request } from "./http.js";
import { aroundAdd, type Middleware } from "./middleware.js";
import type {
  AddJob, AddJobs, AddedJob, AddedJobs, Cancelled, EventPage, Group as GroupRecord, Groups, Job, JobEvent, Jobs, LogLine, LogPage, NewJob,
  Progress, Removed, Retried, Schedule as ScheduleRecord, Schedules, State, StreamEvent, WaitAnswer,
} from "./models.js";
import { follow } from "./sse.js";
import { sleep } from "./waits.js";

const DEFAULT_SERVER = "http://127.0.0.1:7984";
/** How long one request waits on the server at most: many gateways cut a request that is not answered for 30 or 60 s. */
const WAIT_PER_REQUEST_MS = 25_000;
/** A server may limit waits to less. The client repeats a wait no sooner than this. */
const SHORTEST_WAIT_MS = 500;
/** What the server takes in one request. */
const JOBS_PER_REQUEST = 1_000;
const BYTES_PER_REQUEST = 7_000_000;

export interface ClientOptions {
  /** The server's URL, or several on one store with commas between them. Otherwise `TURNWISE_SERVER`, or http://127.0.0.1:7984. */
  server?: string | undefined;
  /** A token. Otherwise `TURNWISE_TOKEN`. */
  token?: string | undefined;
  /** How long requests are repeated, in seconds: 10 otherwise. Waits that are meant do not count. */
  retryFor?: number | undefined;
  /** What is done around each request that adds jobs. */
  middleware?: readonly Middleware[] | undefined;
}

export interface Cancellable {
  /** Ends the request, and its repeats. */
  signal?: AbortSignal | undefined;
}

/** What an added job states beside its type and its options. */
export type AddTerms = Omit<AddJob, "options" | "count" | "at_once">;

export interface JobQuery {
  type?: string | undefined;
  state?: State | undefined;
  tenant?: string | undefined;
  tag?: string | undefined;
  reason_class?: string | undefined;
  where?: string | undefined;
  order?: "newest" | "oldest" | "id" | undefined;
}

export interface EventQuery {
  /** The `seq` of the last event that the caller has, or `oldest`. Without it, what happens from now on. */
  since?: string | undefined;
  type?: string | undefined;
  tenant?: string | undefined;
  state?: string | undefined;
  event?: string | undefined;
}

/** An event of one job. */
export type JobUpdate =
  | { kind: "state"; event: JobEvent }
  | { kind: "progress"; info: unknown }
  | { kind: "end"; job: Job }
  | { kind: "removed" };

/** A client of a turnwise server. It repeats requests, and each of them can be repeated without harm. */
export class Client {
  /** @internal */
  readonly http: Http;
  readonly #middleware: readonly Middleware[];
  readonly #adds = new Adds((jobs) => this.#addTogether(jobs));

  constructor(options: ClientOptions = {}) {
    this.#middleware = options.middleware ?? [];
    const server = options.server ?? environment("TURNWISE_SERVER") ?? DEFAULT_SERVER;
    const token = options.token ?? environment("TURNWISE_TOKEN");
    this.http = new Http({ server, token, retryForMs: milliseconds(options.retryFor ?? 10) });
  }

  /** The URL of the current server, without a password. */
  get server(): string {
    return this.http.server;
  }

  /**
   * Adds a job. Without an `id`, it gets one from the client, so that a repeated request adds it once. Jobs that are added at the same time
   * share requests, unless they have a signal.
   */
  async add<R = unknown>(type: string, options?: unknown, terms: AddTerms = {}, more: Cancellable = {}): Promise<Handle<R>> {
    const job: NewJob = { ...terms, type, id: terms.id ?? newId(), ...(options === undefined ? {} : { options }) };
    if (this.#middleware.length === 0 && more.signal === undefined && isIdempotent(job)) {
      const { type, ...body } = job;
      const added = await this.#adds.add({ type, tenant: job.tenant, text: JSON.stringify(body) });
      return new Handle<R>(this, added.type, added.id, added);
    }
    const adding = { jobs: [job], headers: {} };
    let handle: Handle<R> | undefined;
    await aroundAdd(this.#middleware, adding, async () => {
      const [{ type, ...body }] = adding.jobs as [NewJob];
      const added = await this.call<AddedJob>("POST", ["jobs", type], { body, headers: adding.headers, idempotent: isIdempotent(body), ...more });
      handle = new Handle<R>(this, added.type, added.id, added);
    });
    return handle as unknown as Handle<R>;
  }

  async #addTogether(jobs: readonly NewAdd[]): Promise<AddedJob[]> {
    const [first] = jobs;
    if (first && jobs.length === 1) return [await this.call<AddedJob>("POST", ["jobs", first.type], { body: first.text })];
    const texts = jobs.map(({ type, text }) => `{"type":${JSON.stringify(type)},${text.slice(1)}`);
    return (await this.call<AddedJobs>("POST", ["jobs"], { body: `{"jobs":[${texts.join(",")}]}` })).jobs;
  }

  /**
   * Adds many jobs, in their order, and in requests of up to 1,000 jobs and 7 MB. With `whole`, there is one request, and all jobs are
   * added or none. Jobs without an `id` get one from the client.
   */
  async addMany<R = unknown>(jobs: readonly NewJob[], terms: Omit<AddJobs, "jobs"> & Cancellable = {}): Promise<Handle<R>[]> {
    const { signal, ...others } = terms;
    const adding = { jobs: jobs.map((job) => ({ ...job, id: job.id ?? newId() })), headers: {} };
    const handles: Handle<R>[] = [];
    await aroundAdd(this.#middleware, adding, async () => {
      const texts = adding.jobs.map((job) => JSON.stringify(job));
      const idempotent = adding.jobs.every(isIdempotent);
      for (const part of terms.whole ? [texts] : parts(texts)) {
        const rest = JSON.stringify(others).slice(1);
        const body = `{"jobs":[${part.join(",")}]${rest === "}" ? "" : ","}${rest}`;
        const added = await this.call<AddedJobs>("POST", ["jobs"], { body, headers: adding.headers, idempotent, signal });
        for (const job of added.jobs) handles.push(new Handle<R>(this, job.type, job.id, job));
      }
    });
    return handles;
  }

  /** A handle of a job, without a request. */
  handle<R = unknown>(type: string, id: string): Handle<R> {
    return new Handle<R>(this, type, id);
  }

  /** The record of a job. */
  job(type: string, id: string, more: Cancellable = {}): Promise<Job> {
    return this.call("GET", ["jobs", type, id], more);
  }

  /** The jobs that meet the query, page by page. */
  async *jobs(query: JobQuery = {}, more: Cancellable = {}): AsyncGenerator<Job, void, void> {
    yield* this.pages<Job>(["jobs"], { ...query }, (page: Jobs) => page.jobs, more);
  }

  /** Cancels a job. The state is still `running` if its worker has to stop it. */
  async cancel(type: string, id: string, more: Cancellable = {}): Promise<State> {
    return (await this.call<Cancelled>("POST", ["jobs", type, id, "cancel"], more)).state;
  }

  /** Retries a job. */
  retry(type: string, id: string, options: { with_dependents?: boolean } & Cancellable = {}): Promise<Retried> {
    const { signal, ...body } = options;
    return this.call("POST", ["jobs", type, id, "retry"], { body, signal });
  }

  /** Removes a job. `false`: it runs, and is removed when its worker has stopped it. */
  async remove(type: string, id: string, more: Cancellable = {}): Promise<boolean> {
    return gone(this.call<Removed>("DELETE", ["jobs", type, id], more));
  }

  /** Waits until a job has ended, and returns its record. With a `timeout` in seconds: or until then. */
  async wait(type: string, id: string, options: { timeout?: number | undefined } & Cancellable = {}): Promise<Job> {
    const until = performance.now() + (options.timeout === undefined ? Infinity : milliseconds(options.timeout));
    const path = ["jobs", type, id, "wait"];
    for (;;) {
      const asked = performance.now();
      const wait = Math.min(Math.max(until - asked, 0), WAIT_PER_REQUEST_MS);
      const { signal } = options;
      const answer = await this.call<WaitAnswer>("GET", path, { wait, waitParameter: "timeout_ms", signal });
      if (answer.finished || performance.now() >= until) return answer.job;
      await sleep(Math.max(asked + Math.min(SHORTEST_WAIT_MS, wait) - performance.now(), 0), signal);
    }
  }

  /**
   * Waits for the result of a job. Bytes are a `Uint8Array`. Throws `JobFailed` if the job has failed or was cancelled, and the code
   * `timeout` if it has not ended within `timeout` seconds.
   */
  async result<R = unknown>(type: string, id: string, options: { timeout?: number | undefined } & Cancellable = {}): Promise<R> {
    const job = await this.wait(type, id, options);
    if (job.state === "failed" || job.state === "cancelled") {
      // The record of a wait leaves the errors out.
      throw new JobFailed(await this.job(type, id, { signal: options.signal }).catch(() => job));
    }
    if (job.state !== "completed") {
      throw new TurnwiseError("timeout", `${type}/${id} has not ended in time: it is ${job.state}`, "wait for longer");
    }
    if (job.result !== undefined) return job.result as R;
    try {
      const { answer } = await this.http.knowing({ method: "GET", path: ["jobs", type, id, "result"], signal: options.signal });
      return value(answer, this.server) as R;
    } catch (error) {
      // The server has no result of a job that has returned null: it answers as if there were no such job.
      if (!(error instanceof TurnwiseError) || error.status !== 404) throw error;
      const now = await this.job(type, id, { signal: options.signal });
      if (now.state !== "completed") throw error;
      return (now.result ?? null) as R;
    }
  }

  /** The lines that the runs of a job have logged. With `follow`, also those to come, until the job has ended. */
  async *logs(
    type: string,
    id: string,
    options: { from?: number; follow?: boolean } & Cancellable = {},
  ): AsyncGenerator<LogLine, void, void> {
    const path = ["jobs", type, id, "logs"];
    const { signal } = options;
    let from = options.from ?? 0;
    if (options.follow) {
      const request: Request = { method: "GET", path, query: { from, follow: true }, signal };
      for await (const event of follow(this.http, request, ({ name }) => name === "end" || name === "removed")) {
        if (event.name === "line") yield JSON.parse(event.data) as LogLine;
      }
      return;
    }
    for (;;) {
      const page = await this.call<LogPage>("GET", path, { query: { from, limit: 1000 }, signal });
      yield* page.lines;
      const last = page.lines.at(-1);
      if (!last || page.next <= from) return;
      from = page.next;
    }
  }

  /** What happens to all jobs that this client may read. It never ends by itself. `since` of the next call is the last `seq`. */
  async *events(query: EventQuery = {}, more: Cancellable = {}): AsyncGenerator<StreamEvent, void, void> {
    let { since } = query;
    for (;;) {
      const asked = performance.now();
      const request = { query: { ...query, since }, wait: WAIT_PER_REQUEST_MS, waitParameter: "wait_ms", ...more };
      const page = await this.call<EventPage>("GET", ["events"], request);
      yield* page.events;
      since = page.next;
      if (page.events.length === 0 && !page.more) await sleep(Math.max(asked + SHORTEST_WAIT_MS - performance.now(), 0), more.signal);
    }
  }

  /** What happens to one job: its steps so far, then each as it happens, until it ends. */
  async *follow(type: string, id: string, more: Cancellable = {}): AsyncGenerator<JobUpdate, void, void> {
    const request: Request = { method: "GET", path: ["jobs", type, id, "events"], ...more };
    for await (const { name, data } of follow(this.http, request, ({ name }) => name === "end" || name === "removed")) {
      if (name === "state") yield { kind: "state", event: JSON.parse(data) as JobEvent };
      else if (name === "progress") yield { kind: "progress", info: (JSON.parse(data) as Progress).info };
      else if (name === "end") yield { kind: "end", job: JSON.parse(data) as Job };
      else if (name === "removed") yield { kind: "removed" };
    }
  }

  /** A handle of a group. */
  group(name: string, tenant = "default"): Group {
    return new Group(this, name, tenant);
  }

  /** All groups, page by page. */
  async *groups(query: { tenant?: string; state?: GroupRecord["state"]; parent?: string } = {}, more: Cancellable = {}): AsyncGenerator<GroupRecord, void, void> {
    yield* this.pages<GroupRecord>(["groups"], { ...query }, (page: Groups) => page.groups, more);
  }

  /** A handle of a schedule. */
  schedule(name: string): Schedule {
    return new Schedule(this, name);
  }

  /** All schedules, page by page. */
  async *schedules(query: { tenant?: string } = {}, more: Cancellable = {}): AsyncGenerator<ScheduleRecord, void, void> {
    yield* this.pages<ScheduleRecord>(["schedules"], { ...query }, (page: Schedules) => page.schedules, more);
  }

  /** @internal */
  call<T>(method: Request["method"], path: readonly string[], more: Omit<Request, "method" | "path"> = {}): Promise<T> {
    return this.http.call<T>({ method, path, ...more });
  }

  private async *pages<T>(
    path: readonly string[],
    query: NonNullable<Request["query"]>,
    items: (page: any) => T[],
    more: Cancellable,
  ): AsyncGenerator<T, void, void> {
    let after: string | undefined;
    do {
      const page = await this.call<{ next?: string }>("GET", path, { query: { ...query, after }, ...more });
      yield* items(page);
      after = page.next;
    } while (after !== undefined);
  }
}

/** A handle of one job. */
export class Handle<R = unknown> {
  readonly type: string;
  readonly id: string;
  /** What the server answered when the job was added. */
  readonly added: AddedJob | undefined;
  readonly #client: Client;

  constructor(client: Client, type: string, id: string, added?: AddedJob) {
    this.#client = client;
    this.type = type;
    this.id = id;
    this.added = added;
  }

  /** The record of the job now. */
  status(more: Cancellable = {}): Promise<Job> {
    return this.#client.job(this.type, this.id, more);
  }

  /** See `Client.wait`. */
  wait(options: { timeout?: number | undefined } & Cancellable = {}): Promise<Job> {
    return this.#client.wait(this.type, this.id, options);
  }

  /** See `Client.result`. */
  result(options: { timeout?: number | undefined } & Cancellable = {}): Promise<R> {
    return this.#client.result<R>(this.type, this.id, options);
  }

  cancel(more: Cancellable = {}): Promise<State> {
    return this.#client.cancel(this.type, this.id, more);
  }

  retry(options: { with_dependents?: boolean } & Cancellable = {}): Promise<Retried> {
    return this.#client.retry(this.type, this.id, options);
  }

  remove(more: Cancellable = {}): Promise<boolean> {
    return this.#client.remove(this.type, this.id, more);
  }

  /** See `Client.logs`. */
  logs(options: { from?: number; follow?: boolean } & Cancellable = {}): AsyncGenerator<LogLine, void, void> {
    return this.#client.logs(this.type, this.id, options);
  }

  /** See `Client.follow`. */
  events(more: Cancellable = {}): AsyncGenerator<JobUpdate, void, void> {
    return this.#client.follow(this.type, this.id, more);
  }
}

/** @internal What an answer of any media type holds. */
export function value(answer: Answer, server: string): unknown {
  if (/^application\/json\b/i.test(answer.type)) return json(answer, server);
  if (!answer.type) throw foreign(server, answer.status, "no media type");
  return answer.body;
}

/** @internal Whether it is removed; also if an earlier attempt has removed it. */
export async function gone(removing: Promise<{ removed: boolean }>): Promise<boolean> {
  try {
    return (await removing).removed;
  } catch (error) {
    if (error instanceof TurnwiseError && error.status === 404 && error.mayHaveWorked) return true;
    throw error;
  }
}

/** Jobs in parts that one request may hold. */
function parts(texts: string[]): string[][] {
  const all: string[][] = [];
  let part: string[] = [];
  let bytes = 0;
  for (const text of texts) {
    const size = text.length * (/[^\x00-\x7f]/.test(text) ? 3 : 1);
    if (part.length > 0 && (part.length >= JOBS_PER_REQUEST || bytes + size > BYTES_PER_REQUEST)) {
      all.push(part);
      part = [];
      bytes = 0;
    }
    part.push(text);
    bytes += size;
  }
  if (part.length > 0) all.push(part);
  return all;
}

/** @internal Whether a job may be added again. One of these may end between two attempts, and would then run twice. */
export function isIdempotent(job: Pick<NewJob, "if_exists" | "unique">): boolean {
  return job.if_exists !== "again" && job.unique?.on_conflict !== "after";
}

/** @internal 128 random bits. `crypto.randomUUID` is missing in pages without TLS. */
export function newId(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function environment(name: string): string | undefined {
  const { process } = globalThis as { process?: { env?: Record<string, string | undefined> } };
  return process?.env?.[name] || undefined;
}
