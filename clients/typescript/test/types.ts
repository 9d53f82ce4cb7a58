// Tests of types: `tsc` fails if a line below `@ts-expect-error` has no error.
import type { Database } from "better-sqlite3";
import type mysql from "mysql2/promise";
import type pg from "pg";
import { App, Client, type Handle, type Middleware, type StandardSchema } from "turnwise-client";
import { Relay, add } from "turnwise-client/outbox";

type Equal<A, B> = (<T>() => T extends A ? 1 : 2) extends <T>() => T extends B ? 1 : 2 ? true : false;
const is = <T extends true>(): T | undefined => undefined;

const app = new App({ type: "types" });

// The types of a task follow from its function.
const sum = app.task({ name: "sum", max_attempts: 3 }, async (input: { numbers: number[] }, context) => {
  is<Equal<typeof context.attempt, number>>();
  return { sum: input.numbers.length };
});
const added = sum.add({ numbers: [1] });
is<Equal<typeof added, Promise<Handle<{ sum: number }>>>>();
// @ts-expect-error: a wrong member
void sum.add({ numbers: ["1"] });
// @ts-expect-error: a missing member
void sum.add({});
// @ts-expect-error: a member that is not there
void sum.add({ numbers: [1], other: 2 });
// @ts-expect-error: a wrong member among many
void sum.addMany([{ numbers: [1] }, { numbers: 2 }]);
// @ts-expect-error: a wrong option of an add
void sum.add({ numbers: [1] }, { priority: "high" });
// @ts-expect-error: a result has no such member
void sum.add({ numbers: [1] }).then((handle) => handle.result()).then((result) => result.total);
// @ts-expect-error: a wrong option of a task
app.task({ name: "x", max_attempts: "3" }, () => {});
// @ts-expect-error: a misspelt option of a task
app.task({ name: "x", maxAttempts: 3 }, () => {});

// And from its schemas, also where they transform.
declare const mail: StandardSchema<{ to: string; copies?: number }, { to: string; copies: number }>;
declare const sent: StandardSchema<{ id: string }, { id: string }>;
const send = app.task({ name: "send", input: mail, output: sent, unique: (input) => ({ mode: "until_end", key: input.to }) }, (input) => {
  is<Equal<typeof input, { to: string; copies: number }>>();
  return { id: "1" };
});
void send.add({ to: "a" });
// @ts-expect-error: not what the schema takes
void send.add({ to: 7 });
const result = send.add({ to: "a" }).then((handle) => handle.result());
is<Equal<typeof result, Promise<{ id: string }>>>();
// @ts-expect-error: the function does not return what `output` states
app.task({ name: "wrong", input: mail, output: sent }, () => ({ id: 1 }));
const plain = app.task({ name: "plain", input: mail }, (input) => input.copies);
is<Equal<ReturnType<typeof plain.add>, Promise<Handle<number>>>>();
const nothing = app.task({ name: "nothing" }, () => "x");
void nothing.add(undefined);

// The connection of each database is one, and the input of an outbox is that of the task.
declare const client: pg.Client;
declare const member: pg.PoolClient;
declare const other: mysql.Connection;
declare const another: mysql.PoolConnection;
declare const sqlite: Database;
const later: Promise<Handle<{ sum: number }>>[] = [add(client, sum, { numbers: [1] }), add(member, sum, { numbers: [1] }, { delay_ms: 5, notify: false }), add(other, sum, { numbers: [1] }), add(another, sum, { numbers: [1] })];
const now: Handle<{ sum: number }> = add(sqlite, sum, { numbers: [1] });
void [later, now];
// @ts-expect-error: a wrong member
void add(client, sum, { numbers: ["1"] });
// @ts-expect-error: not what the schema takes
add(sqlite, send, { to: 7 });
// @ts-expect-error: a wrong term
void add(client, sum, { numbers: [1] }, { delay: "5" });
// @ts-expect-error: no connection
void add({}, sum, { numbers: [1] });
void new Relay(() => client, new Client());
void new Relay(async () => other, new Client());
void new Relay(() => sqlite, new Client(), { batch: 10 });

const timing: Middleware = {
  async run(context, next) {
    is<Equal<typeof context.attempt, number>>();
    return next();
  },
};
void new App({ type: "types", middleware: [timing] });
// @ts-expect-error: a run has a result
void new App({ type: "types", middleware: [{ run: () => {} }] });
