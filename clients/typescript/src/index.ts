export { App, Task, type AppOptions, type TaskFunction, type TaskOptions, type TaskSchedule, type Waits } from "./app.js";
export {
  Client, Handle, type AddTerms, type Cancellable, type ClientOptions, type EventQuery, type JobQuery, type JobUpdate,
} from "./client.js";
export type { Context, Logger, RunLocks } from "./context.js";
export { Fail, JobFailed, RetryAfter, RunStopped, Snooze, TurnwiseError, type StopCause } from "./errors.js";
export { Group, Schedule } from "./groups.js";
export type { Adding, Middleware } from "./middleware.js";
export type { StandardSchema } from "./standard.js";
export type { AddedJob, Job, LogLine, NewJob, State, StreamEvent, Unique, WantedLock } from "./models.js";
export type * as api from "./models.js";
