import { setTimeout as sleep } from "node:timers/promises";
import { App } from "turnwise-client";

export const app = new App({ type: "videos" });

export const convert = app.task({ name: "convert", max_attempts: 3, backoff: [1, 10] }, async ({ minutes }, context) => {
  for (let done = 1; done <= minutes; done += 1) {
    // What takes its time.
    await sleep(1000, undefined, { signal: context.signal });
    context.progress({ done, of: minutes });
  }
  return `${minutes} minutes are converted`;
});
