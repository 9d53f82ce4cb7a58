// One run of one job: its context, its reports, and its end.
import type { App, Task } from "./app.js";
import { value as answerValue } from "./client.js";
import type { Context, LogLevel, Logger, RunLocks } from "./context.js";
import { Fail, RetryAfter, RunStopped, Snooze, TurnwiseError, milliseconds, type StopCause } from "./errors.js";
import { Http, base64, type Request } from "./http.js";
import { aroundRun } from "./middleware.js";
import type { AcceptedJob, AskedLocks, NewLogLine, Updated, WantedLock } from "./models.js";
import { validate } from "./standard.js";

/** Reports and lines of log are sent no more often than this. */
const REPORT_INTERVAL_MS = 500;
/** The lines that one request takes at most: older ones that were not sent are dropped. */
const LINES_PER_REQUEST = 500;
const MESSAGE_CHARS = 8_000;
const REASON_CHARS = 10_000;
const TRACE_CHARS = 60_000;
/** How long a request for a lock waits on the server. */
const LOCK_WAIT_MS = 20_000;
const ANSWER_TIMEOUT_MS = 10_000;
/** The members of a report that has the values of steps, as in the client for Python. */
const STEPS = "$steps";
const PROGRESS = "report";

/** How a run ended. */
export type EndKind = "finish" | "fail" | "snooze" | "release";
export interface End {
  run: Run;
  kind: EndKind;
  /** The entry of the end, as JSON. */
  text: string;
  /** What to send in its place if the server refuses it. */
  otherwise?: ((refusal: TurnwiseError) => End) | undefined;
}

/** What a run needs of its worker. */
export interface RunHost {
  readonly app: App;
  readonly http: Http;
  /** The path of the worker. */
  readonly path: readonly string[];
  /** Aborted when no request of this worker is of use any more. */
  readonly gone: AbortSignal;
  say(line: string): void;
  /** The server has removed the worker. */
  expired(): void;
}

export class Run {
  readonly id: string;
  readonly claim: number;
  readonly given: AcceptedJob;
  lost = false;
  readonly #host: RunHost;
  readonly #stop = new AbortController();
  readonly #started = Date.now();
  #lines: NewLogLine[] = [];
  readonly #steps = new Map<string, unknown>();
  readonly #ran = new Set<string>();
  #progress: unknown;
  #dirty = false;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #deadline: ReturnType<typeof setTimeout> | undefined;
  /** Reports are sent one after the other: a later one never arrives before an earlier one. */
  #sending: Promise<unknown> = Promise.resolve();

  constructor(host: RunHost, given: AcceptedJob) {
    this.#host = host;
    this.given = given;
    this.id = given.id;
    this.claim = given.claim;
    const info = given.info as Record<string, unknown> | null | undefined;
    const steps = info?.[STEPS];
    if (typeof steps === "object" && steps !== null) {
      for (const [name, step] of Object.entries(steps)) this.#steps.set(name, step);
      this.#progress = info?.[PROGRESS];
    } else {
      this.#progress = info;
    }
  }

  /** Tells the function that its run must end. */
  stop(cause: StopCause): void {
    if (cause === "lost") this.lost = true;
    this.#stop.abort(new RunStopped(cause));
  }

  /** Runs the function, and returns how the run ended. Never rejects. */
  async work(): Promise<End> {
    const { timeout_ms } = this.given;
    // A longer timer would fire at once.
    if (timeout_ms != null && timeout_ms < 2 ** 31) this.#deadline = setTimeout(() => this.stop("timeout"), timeout_ms);
    let end: End;
    try {
      const task = this.#host.app.tasks.get(this.given.task ?? "");
      if (!task) throw new Error(`this worker has no task ${this.given.task}`);
      end = this.#finished(await this.#call(task));
    } catch (error) {
      end = this.#thrown(error);
    }
    clearTimeout(this.#deadline);
    clearTimeout(this.#timer);
    await this.#sending;
    return this.#with(end);
  }

  async #call(task: Task<unknown, unknown>): Promise<unknown> {
    const { input, output } = task.options;
    let options: unknown = this.given.options;
    if (input) options = await invalidFails(validate(input, options, "the input"), "InvalidInput");
    const context = this.#context();
    const result = await aroundRun(this.#host.app.middleware, context, async () => task.fn(options, context));
    return output ? await invalidFails(validate(output, result, "the result"), "InvalidResult") : result;
  }

  #finished(result: unknown): End {
    if (result === undefined && this.#stop.signal.aborted) return this.#thrown(this.#stop.signal.reason);
    if (result instanceof Uint8Array) return this.#end("finish", { data: base64(result) });
    return this.#end("finish", result === undefined ? {} : { result });
  }

  #thrown(error: unknown): End {
    if (error instanceof Snooze) {
      return this.#end("snooze", error.until ? { until_us: error.until.getTime() * 1000 } : { for_ms: error.forMs });
    }
    if (error instanceof RetryAfter) {
      if (error.pauseRate) this.#pauseRate(error.afterMs).catch(() => {});
      return this.#end("fail", { ...described(error, "RetryAfter"), retry_after_ms: error.afterMs });
    }
    if (error instanceof Fail) return this.#end("fail", { ...described(error, error.errorClass), retry: false });
    const cause = this.#stop.signal.aborted ? (this.#stop.signal.reason as RunStopped).stopCause : undefined;
    if (cause === "timeout") return this.#end("fail", described(error, "Timeout"));
    if (cause !== undefined) return this.#end("release", {});
    return this.#end("fail", described(error));
  }

  #end(kind: EndKind, body: object): End {
    const end: End = { run: this, kind, text: JSON.stringify({ id: this.id, claim: this.claim, ...body }) };
    if (kind !== "release") end.otherwise = (refusal) => this.#refused(kind, refusal);
    return end;
  }

  /** An end in place of one that the server has refused, such as a result that is too large for a request. */
  #refused(kind: EndKind, refusal: TurnwiseError): End {
    const what = kind === "finish" ? "result" : kind;
    const reason = `its ${what} was refused: ${refusal.message.slice(0, REASON_CHARS)}`;
    return { ...this.#end("fail", { reason, class: "Refused", retry: kind === "fail" }), otherwise: undefined };
  }

  /** An end that gives the job back. */
  released(): End {
    return this.#end("release", {});
  }

  /** Adds the lines and the report that no request has taken. If they are refused, the end is sent without them. */
  #with(end: End): End {
    const more: Record<string, unknown> = {};
    if (this.#lines.length > 0) more["log"] = this.#lines;
    if (this.#dirty) more["info"] = this.#info();
    const text = JSON.stringify(more).slice(1);
    return text === "}" ? end : { ...end, text: `${end.text.slice(0, -1)},${text}`, otherwise: () => end };
  }

  #info(): unknown {
    if (this.#steps.size === 0) return this.#progress;
    return { [STEPS]: Object.fromEntries(this.#steps), ...(this.#progress === undefined ? {} : { [PROGRESS]: this.#progress }) };
  }

  // Reports.

  #log(level: LogLevel, message: string, fields?: Record<string, unknown>): void {
    const text = String(message).slice(0, MESSAGE_CHARS).toWellFormed();
    let safe: Record<string, unknown> | undefined;
    try {
      safe = fields && (JSON.parse(JSON.stringify(fields)) as Record<string, unknown>);
    } catch {
      safe = { fields: "no JSON" };
    }
    this.#lines.push({ at_us: Date.now() * 1000, level, message: text, ...(safe ? { fields: safe } : {}) });
    if (this.#lines.length > LINES_PER_REQUEST) this.#lines.splice(0, this.#lines.length - LINES_PER_REQUEST);
    this.#soon();
  }

  #soon(): void {
    this.#timer ??= setTimeout(() => {
      this.#timer = undefined;
      void this.#flush();
    }, REPORT_INTERVAL_MS);
  }

  /** Sends lines and progress. If the server does not answer, the next report takes them, or the end. */
  #flush(): Promise<void> {
    return this.#inTurn(async () => {
      if (this.lost || (this.#lines.length === 0 && !this.#dirty)) return;
      const lines = this.#lines;
      const { body, dirty } = this.#report();
      try {
        await this.#update(body, 0);
      } catch (error) {
        if (!(error instanceof TurnwiseError)) return;
        if (error.temporary) {
          this.#lines = [...lines, ...this.#lines].slice(-LINES_PER_REQUEST);
          this.#dirty ||= dirty;
          this.#soon();
        } else if (!this.lost) {
          this.#host.say(`a report of ${this.id} was refused: ${error.message}`);
        }
      }
    });
  }

  #report(): { body: Record<string, unknown>; dirty: boolean } {
    const body: Record<string, unknown> = { claim: this.claim };
    const dirty = this.#dirty;
    if (this.#lines.length > 0) body["log"] = this.#lines;
    if (dirty) body["info"] = this.#info();
    this.#lines = [];
    this.#dirty = false;
    return { body, dirty };
  }

  async #update(body: object, retryFor: number): Promise<void> {
    const { answer } = await this.#ask<Updated>({ method: "POST", path: this.#path("update"), body, retryFor });
    if (answer === "cancel") this.stop("cancelled");
    if (answer === "halt") this.stop("lost");
  }

  #inTurn<T>(work: () => Promise<T>): Promise<T> {
    const done = this.#sending.then(work);
    this.#sending = done.catch(() => {});
    return done;
  }

  /** Sends a request about this run. */
  async #ask<T>(request: Request): Promise<T> {
    try {
      return await this.#host.http.call<T>({ timeout: ANSWER_TIMEOUT_MS, signal: this.#host.gone, ...request });
    } catch (error) {
      if (error instanceof TurnwiseError && (error.isHalt || error.isExpired)) this.stop("lost");
      if (error instanceof TurnwiseError && error.isExpired) this.#host.expired();
      throw error;
    }
  }

  #path(...what: string[]): string[] {
    return [...this.#host.path, "jobs", this.id, ...what];
  }

  async #pauseRate(ms: number): Promise<void> {
    await this.#inTurn(() => this.#update({ claim: this.claim, rate_pause_ms: ms }, ANSWER_TIMEOUT_MS));
  }

  async #step<T>(name: string, fn: () => T | Promise<T>): Promise<T> {
    if (this.#ran.has(name)) throw new TypeError(`the run has two steps with the name ${name}`);
    this.#ran.add(name);
    if (this.#steps.has(name)) return this.#steps.get(name) as T;
    this.#stop.signal.throwIfAborted();
    const result = await fn();
    // What a later attempt gets is what this one gets.
    const kept: unknown = result === undefined ? null : JSON.parse(JSON.stringify(result));
    await this.#inTurn(async () => {
      this.#steps.set(name, kept);
      this.#dirty = true;
      const { body } = this.#report();
      try {
        await this.#update(body, Infinity);
      } catch (error) {
        this.#steps.delete(name);
        throw error;
      }
    });
    return kept as T;
  }

  async #input<T>(name: string): Promise<T> {
    const given = this.given.inputs?.[name];
    if (!given) throw new TurnwiseError("not_found", `the job has no input ${name}`, "name it in `inputs` when the job is added");
    if ("result" in given && given.result !== undefined) return given.result as T;
    const request: Request = { method: "GET", path: this.#path("inputs", name), query: { claim: this.claim }, signal: this.#stop.signal };
    const { answer } = await this.#host.http.knowing(request);
    return answerValue(answer, this.#host.http.server) as T;
  }

  async #askLocks(locks: readonly WantedLock[], wait: number): Promise<AskedLocks> {
    const bodyFor = (wait_ms: number) => JSON.stringify({ claim: this.claim, locks, wait_ms });
    return this.#ask({ method: "POST", path: this.#path("locks"), wait, bodyFor, signal: this.#stop.signal });
  }

  #locks(): RunLocks {
    return {
      acquire: async (locks) => {
        while ((await this.#askLocks(locks, LOCK_WAIT_MS)).state !== "held");
      },
      ask: (locks) => this.#askLocks(locks, 0),
      release: async (level, name) => {
        const query = { claim: this.claim, level, name };
        await this.#ask({ method: "DELETE", path: this.#path("locks"), query });
      },
    };
  }

  #context(): Context {
    const { given } = this;
    const log = ((message, fields) => this.#log("info", message, fields)) as Logger;
    for (const level of ["debug", "info", "warn", "error"] as const) {
      log[level] = (message, fields) => this.#log(level, message, fields);
    }
    const { signal } = this.#stop;
    const lastReport = this.#progress;
    return {
      id: this.id,
      type: this.#host.app.type,
      task: given.task ?? "",
      tenant: given.tenant,
      user: given.user,
      attempt: given.attempt,
      maxAttempts: given.max_attempts,
      deadline: given.timeout_ms == null ? undefined : new Date(this.#started + given.timeout_ms),
      signal,
      get cancelled() {
        return signal.aborted && (signal.reason as RunStopped).stopCause === "cancelled";
      },
      traceparent: given.traceparent,
      inputs: given.inputs ?? {},
      lastReport,
      group: given.group,
      callback: given.callback,
      schedule: given.schedule,
      log,
      locks: this.#locks(),
      progress: (info) => {
        const text = JSON.stringify(info);
        if (text === undefined) throw new TypeError("progress is any JSON");
        this.#progress = JSON.parse(text);
        this.#dirty = true;
        this.#soon();
      },
      input: (name) => this.#input(name),
      step: (name, fn) => this.#step(name, fn),
      pauseRate: (seconds) => this.#pauseRate(milliseconds(seconds)),
    };
  }
}

/** An error of a run, as the server takes it. */
function described(thrown: unknown, errorClass?: string): object {
  const error = thrown instanceof Error ? thrown : undefined;
  const reason = error ? error.message : String(thrown);
  return {
    class: errorClass ?? error?.name ?? typeof thrown,
    reason: (reason || (error?.name ?? "")).slice(0, REASON_CHARS).toWellFormed(),
    ...(error ? { trace: trace(error).slice(0, TRACE_CHARS).toWellFormed() } : {}),
  };
}

/** The trace of an error and of its causes. */
function trace(error: Error): string {
  const texts: string[] = [];
  let cause: unknown = error;
  for (let depth = 0; cause instanceof Error && depth < 8; depth += 1) {
    texts.push(cause.stack ?? String(cause));
    ({ cause } = cause);
  }
  return texts.join("\ncaused by: ");
}

async function invalidFails<T>(validated: Promise<T>, errorClass: string): Promise<T> {
  try {
    return await validated;
  } catch (error) {
    if (error instanceof TurnwiseError && error.error === "invalid_input") throw new Fail(error.reason, { errorClass, cause: error });
    throw error;
  }
}

