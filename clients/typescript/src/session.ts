// A worker under one id: from its registration until it leaves, or the server has removed it.
import { setImmediate } from "node:timers";
import type { App } from "./app.js";
import { TurnwiseError } from "./errors.js";
import type { Http, Request } from "./http.js";
import type { Accepted, AcceptedJob, EndedRun, Pinged, Registered } from "./models.js";
import { Run, type End, type EndKind, type RunHost } from "./run.js";
import { sleep } from "./waits.js";

/** How long a request for jobs waits on the server. */
const ACCEPT_WAIT_MS = 20_000;
const ANSWER_TIMEOUT_MS = 10_000;
/** The server takes 12 MB in one request. */
const ENDS_PER_REQUEST = 200;
const CHARS_PER_REQUEST = 4_000_000;
/** The most jobs of one answer, and of one that sends jobs again. */
const JOBS_PER_ANSWER = 200;
const JOBS_SENT_AGAIN = 10;
/** How long the worker waits for its functions after it has told them to stop. */
const STOP_PATIENCE_MS = 5_000;
const LEAVE_PATIENCE_MS = 5_000;
/** Entries of a batch of ends, by the list that they belong to. */
const KINDS: readonly EndKind[] = ["finish", "fail", "snooze", "release"];

export interface SessionOptions {
  app: App;
  http: Http;
  slots: number;
  graceMs: number;
  /** Aborted when the worker takes no new jobs. */
  stopping: AbortSignal;
  /** Aborted when the worker ends at once. */
  now: AbortSignal;
  say: (line: string) => void;
}

export type SessionEnd = "stopped" | "drained" | "expired";

export class Session implements RunHost {
  readonly app: App;
  readonly http: Http;
  readonly path: readonly string[];
  readonly #options: SessionOptions;
  readonly #registered: Registered;
  readonly #gone = new AbortController();
  /** The runs whose end the server has not recorded, by claim. */
  readonly #runs = new Map<number, Run>();
  /** How many functions run. */
  #busy = 0;
  #ends: End[] = [];
  #received = 0;
  /** Ends the request for jobs that is on its way. */
  #asking: AbortController | undefined;
  /** Whether it waits for jobs. */
  #waiting = false;
  #sendingEnds: Promise<void> | undefined;
  #expired = false;
  #drained = false;
  #failure: unknown;
  #wake: () => void = () => {};

  constructor(options: SessionOptions, registered: Registered) {
    this.#options = options;
    this.#registered = registered;
    this.app = options.app;
    this.http = options.http;
    this.path = ["workers", options.app.type, registered.worker];
  }

  get gone(): AbortSignal {
    return this.#gone.signal;
  }

  say(line: string): void {
    this.#options.say(line);
  }

  expired(): void {
    if (this.#expired) return;
    this.#expired = true;
    for (const run of this.#runs.values()) run.stop("lost");
    this.#gone.abort(new TurnwiseError("expired_worker", "the server has removed this worker", ""));
    this.#changed();
  }

  /** Works until the worker stops, an operator has drained it, or the server has removed it. Rejects if the server refuses it. */
  async work(): Promise<SessionEnd> {
    const { stopping, now } = this.#options;
    const onStop = () => {
      this.#asking?.abort();
      this.#changed();
    };
    const onNow = () => {
      this.#gone.abort();
      this.#changed();
    };
    stopping.addEventListener("abort", onStop);
    now.addEventListener("abort", onNow);
    const pinging = this.#guarded(this.#ping());
    try {
      await this.#guarded(this.#accept());
      if (!this.gone.aborted && this.#failure === undefined) await this.#guarded(this.#leave());
    } finally {
      stopping.removeEventListener("abort", onStop);
      now.removeEventListener("abort", onNow);
      for (const run of this.#runs.values()) run.stop(this.#expired ? "lost" : "stopping");
      this.#gone.abort();
      await pinging;
      // Their functions may still use what the slots stand for.
      if (this.#expired) await this.#untilStill(performance.now() + STOP_PATIENCE_MS);
    }
    if (this.#failure !== undefined) throw this.#failure;
    return this.#expired ? "expired" : stopping.aborted ? "stopped" : "drained";
  }

  /** Without one of its parts, the worker would keep its jobs, and do nothing: an error ends it. */
  async #guarded(part: Promise<void>): Promise<void> {
    try {
      await part;
    } catch (error) {
      if (this.gone.aborted) return;
      if (error instanceof TurnwiseError && error.isExpired) return this.expired();
      this.#failure ??= error;
      this.#asking?.abort();
      this.#changed();
    }
  }

  get #over(): boolean {
    return this.#expired || this.#drained || this.#failure !== undefined || this.#options.stopping.aborted;
  }

  // Jobs.

  async #accept(): Promise<void> {
    while (!this.#over) {
      const batch = this.#takeEnds();
      const free = this.#options.slots - this.#busy;
      if (free <= 0) {
        // No slot is free, and no end makes room: wait for one.
        if (batch.length > 0) await this.#sendAlone(batch);
        else await this.#change();
        continue;
      }
      const answer = await this.#ask(batch, Math.min(free, JOBS_PER_ANSWER));
      if (answer) await this.#take(answer.jobs);
    }
    if (this.#asking?.signal.aborted) await this.#returnUnreceived();
  }

  /** Jobs that were claimed as a request was cut would wait until the worker leaves: asks for them, and gives them back. */
  async #returnUnreceived(): Promise<void> {
    for (let count = JOBS_SENT_AGAIN; count >= JOBS_SENT_AGAIN && !this.gone.aborted && this.#failure === undefined; ) {
      const body = { received: this.#received, limit: 1, wait_ms: 0 };
      const answer = await this.#call<Accepted>("accept", { body, retryFor: 0 }).catch(unlessTemporary);
      const jobs = answer?.jobs ?? [];
      for (const given of jobs) this.#giveBack(given);
      count = jobs.length;
    }
  }

  /** Asks for jobs. With ends, the request does not wait; without, ends that come meanwhile get a request of their own. */
  async #ask(batch: End[], limit: number): Promise<Accepted | undefined> {
    const received = this.#received;
    const ends = batch.length > 0 ? `,"ends":${entries(batch)}` : "";
    const bodyFor = (wait: number) => `{"received":${received},"limit":${limit},"wait_ms":${wait}${ends}}`;
    const asking = new AbortController();
    const stop = () => asking.abort();
    this.#asking = asking;
    this.#waiting = batch.length === 0;
    this.gone.addEventListener("abort", stop, { once: true });
    try {
      const more = { bodyFor, wait: this.#waiting ? ACCEPT_WAIT_MS : 0, retryFor: Infinity, signal: asking.signal };
      const answer = await this.#call<Accepted>("accept", more);
      this.#asking = undefined;
      this.#recorded(batch, answer.ended ?? []);
      return this.#follow(answer);
    } catch (error) {
      if (asking.signal.aborted) {
        // The worker stops. It is unknown whether the ends were recorded: they are sent again.
        this.#ends.unshift(...batch);
        return undefined;
      }
      if (batch.length === 0 || !isRefusal(error)) throw error;
      // One of the ends is at fault: each gets a request of its own.
      for (const end of batch) await this.#sendAlone([end]);
      return undefined;
    } finally {
      this.#waiting = false;
      this.gone.removeEventListener("abort", stop);
    }
  }

  /** Follows the mode in an answer. A quiet worker asks for jobs, and gets none. */
  #follow<T extends { mode?: string | undefined }>(answer: T): T {
    if (answer.mode === "drain" && !this.#drained) {
      this.#drained = true;
      this.#asking?.abort();
      this.#changed();
    }
    return answer;
  }

  async #take(jobs: AcceptedJob[]): Promise<void> {
    let started = 0;
    for (const given of jobs) {
      // The server sends a job again if its answer was lost.
      if (given.claim <= this.#received) continue;
      this.#received = given.claim;
      if (this.#over) this.#giveBack(given);
      else this.#start(given);
      started += 1;
    }
    // Functions that are short have ended after this: their ends join the next request.
    if (started > 0) await new Promise((resolve) => setImmediate(resolve));
  }

  #start(given: AcceptedJob): void {
    const run = new Run(this, given);
    this.#runs.set(run.claim, run);
    this.#busy += 1;
    void run.work().then((end) => {
      this.#busy -= 1;
      this.#end(end);
    });
  }

  #giveBack(given: AcceptedJob): void {
    this.#received = Math.max(this.#received, given.claim);
    const run = new Run(this, given);
    this.#runs.set(run.claim, run);
    this.#end(run.released());
  }

  // Ends.

  #end(end: End): void {
    if (end.run.lost) this.#runs.delete(end.run.claim);
    else this.#ends.push(end);
    this.#changed();
    // While a request waits for jobs, or none is sent any more, ends do not wait for the next one.
    if (this.#ends.length > 0 && (this.#waiting || this.#over)) this.#sendEnds();
  }

  /** As many ends as fit into one request. */
  #takeEnds(): End[] {
    let chars = 0;
    let count = 0;
    for (const end of this.#ends) {
      chars += end.text.length;
      if (count > 0 && (count >= ENDS_PER_REQUEST || chars > CHARS_PER_REQUEST)) break;
      count += 1;
    }
    return this.#ends.splice(0, count);
  }

  /** Sends all ends that there are, in one request at a time. */
  #sendEnds(): void {
    this.#sendingEnds ??= this.#guarded(this.#sendAll()).finally(() => {
      this.#sendingEnds = undefined;
      this.#changed();
    });
  }

  async #sendAll(): Promise<void> {
    await new Promise((resolve) => setImmediate(resolve));
    while (this.#ends.length > 0 && !this.gone.aborted) await this.#sendAlone(this.#takeEnds());
  }

  /** Sends ends without asking for jobs, until they have an answer. */
  async #sendAlone(batch: End[]): Promise<void> {
    try {
      const answer = await this.#call<{ ended: EndedRun[] }>("end", { body: entries(batch), retryFor: Infinity });
      this.#recorded(batch, answer.ended);
    } catch (error) {
      if (!isRefusal(error)) throw error;
      if (batch.length > 1) {
        for (const end of batch) await this.#sendAlone([end]);
        return;
      }
      for (const end of batch) this.#refused(end, error);
    }
  }

  /** The server has refused an end, and not because the claim is lost. */
  #refused(end: End, refusal: TurnwiseError): void {
    this.say(`the end of ${end.run.id} was refused: ${refusal.message}`);
    const other = end.otherwise?.(refusal);
    if (other) this.#end(other);
    else this.#runs.delete(end.run.claim);
  }

  #recorded(batch: End[], ended: EndedRun[]): void {
    const byClaim = new Map(ended.map((one) => [one.claim, one]));
    for (const end of batch) {
      const error = byClaim.get(end.run.claim)?.error;
      if (error && error.error !== "halt") {
        this.#refused(end, new TurnwiseError(error.error, error.reason, error.hint));
        continue;
      }
      if (error) this.say(`lost ${end.run.id}: ${error.reason}`);
      this.#runs.delete(end.run.claim);
    }
    this.#changed();
  }

  // Heartbeats.

  async #ping(): Promise<void> {
    const interval = this.#registered.ping_interval_ms;
    for (;;) {
      await sleep(interval, this.gone, true);
      if (this.gone.aborted) return;
      const answer = await this.#call<Pinged>("ping", { body: {}, retryFor: Infinity });
      this.#follow(answer);
      for (const claim of answer.cancel) this.#runs.get(claim)?.stop("cancelled");
    }
  }

  // The end.

  /** Waits for the functions, gives the rest back, and leaves. */
  async #leave(): Promise<void> {
    const { now, graceMs, stopping } = this.#options;
    this.#sendEnds();
    // A worker that drains ends after its last job, and one that stops after its grace.
    const deadline = stopping.aborted ? performance.now() + graceMs : Infinity;
    await this.#until(deadline);
    if (this.#expired) return;
    if (this.#busy > 0) {
      this.say(`gives back ${this.#busy} jobs`);
      for (const run of this.#runs.values()) run.stop("stopping");
      await this.#until(now.aborted ? 0 : performance.now() + STOP_PATIENCE_MS);
    }
    if (this.gone.aborted) return;
    const left = await this.#call("leave", { body: {}, retryFor: LEAVE_PATIENCE_MS }).catch(unlessTemporary);
    if (!left) this.say("could not leave: the server removes this worker after the health timeout");
  }

  /** Waits until no function runs and all ends are recorded; at most until the deadline, or until the worker ends at once. */
  async #until(deadline: number): Promise<void> {
    let until = deadline;
    while (!this.#expired && !this.#options.now.aborted && this.#failure === undefined && this.#runs.size > 0) {
      // A drained worker may be stopped, too.
      if (until === Infinity && this.#options.stopping.aborted) until = performance.now() + this.#options.graceMs;
      const left = until - performance.now();
      if (left <= 0) return;
      if (this.#ends.length > 0) this.#sendEnds();
      await this.#change(Math.min(left, 2 ** 31 - 1));
    }
  }

  /** Waits until no function of lost runs is running. */
  async #untilStill(deadline: number): Promise<void> {
    for (let left; this.#busy > 0 && (left = deadline - performance.now()) > 0; ) await this.#change(left);
  }

  // Requests and waits.

  #call<T>(what: string, more: Omit<Request, "method" | "path">): Promise<T> {
    const onFailure = (error: TurnwiseError) => this.say(`no answer to ${what}, asking again: ${error.message}`);
    const path = [...this.path, what];
    const always = { timeout: ANSWER_TIMEOUT_MS, signal: this.gone, onFailure, repeatAfter: passes };
    return this.http.call<T>({ method: "POST", path, ...always, ...more });
  }

  #changed(): void {
    this.#wake();
  }

  /** Waits for a change, at most for so long. */
  #change(ms?: number): Promise<void> {
    return new Promise((resolve) => {
      const timer = ms === undefined ? undefined : setTimeout(() => this.#wake(), ms);
      this.#wake = () => {
        clearTimeout(timer);
        this.#wake = () => {};
        resolve();
      };
    });
  }
}

/** Whether the server has refused what a request says, and not the worker itself. */
function isRefusal(error: unknown): error is TurnwiseError {
  return error instanceof TurnwiseError && (error.status === 400 || error.status === 413);
}

/** An error of the server, or the answer of another program: what the worker holds is worth more attempts. */
function passes(error: TurnwiseError): boolean {
  return error.status >= 500 || error.error === "foreign_answer";
}

function unlessTemporary(error: unknown): undefined {
  if (!(error instanceof TurnwiseError) || !error.temporary) throw error;
}

/** Ends, as one request has them. */
function entries(batch: End[]): string {
  const lists = KINDS.map((kind) => [kind, batch.filter((end) => end.kind === kind)] as const).filter(([, ends]) => ends.length > 0);
  return `{${lists.map(([kind, ends]) => `"${kind}":[${ends.map((end) => end.text).join(",")}]`).join(",")}}`;
}
