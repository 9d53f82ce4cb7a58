import type { Job } from "./models.js";

/**
 * A request that was refused, or had no answer. `error` is a stable code: the server's, or one of the client's own, `no_answer`,
 * `foreign_answer`, `invalid_url`, `invalid_token`, `invalid_input`.
 */
export class TurnwiseError extends Error {
  override readonly name: string = "TurnwiseError";
  /** The stable code, on which programs decide. */
  readonly error: string;
  /** What went wrong, for people. */
  readonly reason: string;
  /** What the caller can do about it. */
  readonly hint: string;
  /** The HTTP status; 0 if there was no answer. */
  readonly status: number;
  /** Whether the request may have taken effect. */
  readonly mayHaveWorked: boolean;
  /** Whether the same request may succeed later. */
  readonly temporary: boolean;
  /** @internal How long to wait before the next request, in ms, as the server asked. */
  readonly retryAfterMs: number;

  constructor(
    error: string,
    reason: string,
    hint: string,
    more: { status?: number; mayHaveWorked?: boolean; temporary?: boolean; retryAfterMs?: number } = {},
  ) {
    super(`${error}: ${reason}${hint ? ` (${hint})` : ""}`);
    this.error = error;
    this.reason = reason;
    this.hint = hint;
    this.status = more.status ?? 0;
    this.mayHaveWorked = more.mayHaveWorked ?? false;
    this.temporary = more.temporary ?? false;
    this.retryAfterMs = more.retryAfterMs ?? 0;
  }

  /** @internal Whether the worker has lost its claim. */
  get isHalt(): boolean {
    return this.error === "halt";
  }

  /** @internal Whether the worker is no longer registered. */
  get isExpired(): boolean {
    return this.error === "expired_worker" || this.error === "unknown_worker";
  }
}

/** The result of a job was awaited, and the job has failed or was cancelled. */
export class JobFailed extends TurnwiseError {
  override readonly name: string = "JobFailed";
  readonly job: Job;
  /** The class of the job's last error, as its worker stated it. */
  readonly errorClass: string | undefined;
  /** The trace of the job's last error. */
  readonly trace: string | undefined;

  constructor(job: Job) {
    super(`job_${job.state}`, `${job.type}/${job.id}: ${job.reason ?? job.state}`, "");
    this.job = job;
    this.errorClass = job.errors?.[0]?.class;
    this.trace = job.errors?.[0]?.trace;
  }
}

/** Throw it in a task: it is too early. The job runs again later, and this run is no attempt. */
export class Snooze extends Error {
  override readonly name = "Snooze";
  readonly forMs: number | undefined;
  readonly until: Date | undefined;

  /** Runs the job again after this many seconds, or at this time. */
  constructor(when: number | Date) {
    super(typeof when === "number" ? `again in ${when} s` : `again at ${when.toISOString()}`);
    if (typeof when === "number") this.forMs = milliseconds(when);
    else this.until = when;
  }
}

/** Throw it in a task: this attempt has failed, and the next one starts after this time, in place of the job's backoff. */
export class RetryAfter extends Error {
  override readonly name = "RetryAfter";
  readonly afterMs: number;
  /** Whether the rates that the job obeys start no job for this time. */
  readonly pauseRate: boolean;

  constructor(seconds: number, reason?: string, options: { pauseRate?: boolean; cause?: unknown } = {}) {
    super(reason ?? `again in ${seconds} s`, "cause" in options ? { cause: options.cause } : undefined);
    this.afterMs = milliseconds(seconds);
    this.pauseRate = options.pauseRate ?? false;
  }
}

/** Throw it in a task: the job has failed for good, and is not retried. */
export class Fail extends Error {
  override readonly name: string = "Fail";
  /** The class of the error, by which failures are counted together. */
  readonly errorClass: string;

  constructor(reason: string, options: { errorClass?: string; cause?: unknown } = {}) {
    super(reason, "cause" in options ? { cause: options.cause } : undefined);
    this.errorClass = options.errorClass ?? "Fail";
  }
}

/** Why the signal of a run was aborted. */
export type StopCause = "cancelled" | "lost" | "stopping" | "timeout";

const STOP_TEXTS: Record<StopCause, string> = {
  cancelled: "the job was cancelled",
  lost: "the worker has lost its claim on the job",
  stopping: "the worker stops, and gives the job back",
  timeout: "the run took longer than its timeout",
};

/** The `reason` of the signal of a run. */
export class RunStopped extends Error {
  override readonly name = "RunStopped";
  readonly stopCause: StopCause;

  constructor(stopCause: StopCause) {
    super(STOP_TEXTS[stopCause]);
    this.stopCause = stopCause;
  }
}

/** @internal Seconds in whole milliseconds, as the server takes them. */
export function milliseconds(seconds: number): number {
  return Math.round(seconds * 1000);
}
