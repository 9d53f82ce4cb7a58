// zod, valibot and arktype have Standard Schema: their types follow without an adapter.
import { type } from "arktype";
import { App } from "turnwise-client";
import * as v from "valibot";
import { z } from "zod";

export const app = new App({ type: "schemas" });

const zodMail = z.object({ to: z.string(), copies: z.number().default(1) });
export const zod = app.task({ name: "zod", input: zodMail }, (input) => input.copies.toFixed());
export const valibot = app.task({ name: "valibot", input: v.object({ to: v.string(), copies: v.optional(v.number(), 1) }) }, (input) => input.copies.toFixed());
export const arktype = app.task({ name: "arktype", input: type({ to: "string", copies: "number = 1" }) }, (input) => input.copies.toFixed());

for (const task of [zod, valibot, arktype]) {
  const result: Promise<string> = task.add({ to: "a" }).then((handle) => handle.result());
  void result;
  // @ts-expect-error: not what the schema takes
  void task.add({ to: 7 });
  // @ts-expect-error: a missing member
  void task.add({});
}
