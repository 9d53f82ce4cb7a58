import { App, Fail } from "turnwise-client";

export const app = new App({ type: "reports" });

/** A sum of what customers have ordered, which takes a while. */
export const report = app.task({ name: "report", max_attempts: 3, backoff: [5, 60], timeout: 600 }, async ({ orders }, context) => {
  if (orders.length === 0) throw new Fail("there are no orders");
  let total = 0;
  for (const [done, { price }] of orders.entries()) {
    context.signal.throwIfAborted();
    total += price;
    context.progress({ done: done + 1, of: orders.length });
  }
  return { orders: orders.length, total };
});
