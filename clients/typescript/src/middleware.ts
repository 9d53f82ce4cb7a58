// Middleware: what an application does around each request that adds jobs, and around each run.
import type { Context } from "./context.js";
import type { NewJob } from "./models.js";

/** A request that adds jobs, which a middleware may change before it is sent. */
export interface Adding {
  /** The jobs, each with its type and its id. */
  readonly jobs: NewJob[];
  /** Headers of the request: `traceparent`, for example. */
  readonly headers: Record<string, string>;
}

/** Has one of these methods, or both. The first middleware of a list is the outermost. */
export interface Middleware {
  /** `next` sends the request. It ends when the server has answered. */
  add?(adding: Adding, next: () => Promise<void>): Promise<void>;
  /** `next` runs the function of a task. It returns its result, and throws its errors. */
  run?(context: Context, next: () => Promise<unknown>): Promise<unknown>;
}

/** @internal */
export async function aroundAdd(middleware: readonly Middleware[], adding: Adding, send: () => Promise<void>): Promise<void> {
  let sent = false;
  const last = () => {
    sent = true;
    return send();
  };
  await middleware.reduceRight((next, each) => () => (each.add ? each.add(adding, next) : next()), last)();
  if (!sent) throw new TypeError("a middleware has not called `next`: no job was added");
}

/** @internal */
export function aroundRun(middleware: readonly Middleware[], context: Context, run: () => Promise<unknown>): Promise<unknown> {
  return middleware.reduceRight((next, each) => () => (each.run ? each.run(context, next) : next()), run)();
}
