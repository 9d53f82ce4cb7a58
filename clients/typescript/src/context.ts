import type { AcceptedJob, AskedLocks, GivenInput, LogLevel, WantedLock } from "./models.js";

/** Writes a line to the job's log. */
export interface Logger {
  (message: string, fields?: Record<string, unknown>): void;
  debug(message: string, fields?: Record<string, unknown>): void;
  info(message: string, fields?: Record<string, unknown>): void;
  warn(message: string, fields?: Record<string, unknown>): void;
  error(message: string, fields?: Record<string, unknown>): void;
}

/** Locks that a run takes beside those that it holds since its start. */
export interface RunLocks {
  /** Waits until the job holds all of these locks. */
  acquire(locks: readonly WantedLock[]): Promise<void>;
  /** Asks for these locks, and does not wait: the answer names the lock that is not free. The job keeps its place in the lock's queue. */
  ask(locks: readonly WantedLock[]): Promise<AskedLocks>;
  /** Gives a lock back, or withdraws the request for it. */
  release(level: string, name?: string): Promise<void>;
}

/** What a task knows of its run. */
export interface Context {
  readonly id: string;
  readonly type: string;
  readonly task: string;
  readonly tenant: string;
  readonly user: string | undefined;
  /** The number of this attempt, from 1 on. */
  readonly attempt: number;
  /** The number of the last attempt; undefined if there is none. */
  readonly maxAttempts: number | undefined;
  /** The end of the timeout of this run. */
  readonly deadline: Date | undefined;
  /** Is aborted when the run must end: cancelled, lost, out of time, or given back. Its reason is a `RunStopped`. Pass it to `fetch`. */
  readonly signal: AbortSignal;
  /** Whether the job was cancelled. */
  readonly cancelled: boolean;
  /** Send it as the header `traceparent` of requests, so that their traces continue the job's. */
  readonly traceparent: string | undefined;
  /** The results of the jobs that this one names among its inputs. One that does not fit has a `url`: read it with `input`. */
  readonly inputs: Readonly<Record<string, GivenInput>>;
  /** The last progress that an earlier run has reported. */
  readonly lastReport: unknown;
  /** The group of the job, the group that has added it, and its schedule. */
  readonly group: AcceptedJob["group"];
  readonly callback: AcceptedJob["callback"];
  readonly schedule: AcceptedJob["schedule"];
  readonly log: Logger;
  readonly locks: RunLocks;

  /** Reports progress: any JSON of at most 12 kB. Reports within half a second are sent as one, the latest. */
  progress(info: unknown): void;
  /** The result of the job that is the input `name`, of any size. Bytes are a `Uint8Array`. */
  input<T = unknown>(name: string): Promise<T>;
  /**
   * Runs a step, and remembers its value with the job: in a later attempt, the step does not run, and has that value. All values and the
   * progress of a job have at most 12 kB as JSON. A step that is cut off before its value is recorded runs again. Each name occurs once
   * in a run.
   */
  step<T>(name: string, fn: () => T | Promise<T>): Promise<T>;
  /** Lets no job start for this many seconds in the rates that this job obeys, because the service that they protect has refused. */
  pauseRate(seconds: number): Promise<void>;
}

export type { LogLevel };
