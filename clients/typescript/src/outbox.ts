// The outbox: jobs that are added in the transaction of the application's own database, and the relay that passes them to the server.
//
// `add` inserts a row where the application writes its own. If its transaction is rolled back, there is no job. A `Relay` reads the rows,
// adds their jobs, and deletes the rows. It may be killed at any moment, run several times, or lose answers: each job has its id in the
// row, and the server adds a job with one id once. The client for Python has the same table: the relay of either passes on all rows.
import type { Task } from "./app.js";
import { isIdempotent, newId, type AddTerms, type Client, type Handle } from "./client.js";
import { TurnwiseError, milliseconds } from "./errors.js";
import type { NewJob } from "./models.js";
import { passed } from "./standard.js";
import { sleep } from "./waits.js";

/** A request has at most so many jobs, and about so many characters of them. */
const BATCH = 500;
const BATCH_CHARS = 2 ** 20;
/** After an error that may pass, the relay waits, longer each time. */
const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 30_000;
/** The rows of a tenant for whose jobs the server has no room wait for so long. */
const FULL_MS = 5_000;
/** After so many refusals in a row for such a reason, the rest of a batch waits. */
const MAX_WAITS = 20;
/** How long the relay waits while another connection writes to SQLite, and how often it looks. */
const BUSY_MS = 30_000;
const BUSY_LOOK_MS = 20;
/** MySQL has no index of longer texts. */
const PROBLEM_CHARS = 700;
const CHANNEL = "turnwise_outbox";
const INSERT = "INSERT INTO turnwise_outbox (job) VALUES (?)";

export const SQLITE = `\
CREATE TABLE IF NOT EXISTS turnwise_outbox (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    job TEXT NOT NULL,
    added_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')),
    problem TEXT
);
CREATE INDEX IF NOT EXISTS turnwise_outbox_waiting ON turnwise_outbox (id) WHERE problem IS NULL;
`;
export const POSTGRESQL = `\
CREATE TABLE IF NOT EXISTS turnwise_outbox (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job text NOT NULL,
    added_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    problem text
);
CREATE INDEX IF NOT EXISTS turnwise_outbox_waiting ON turnwise_outbox (id) WHERE problem IS NULL;
`;
/** MySQL has no indexes of some rows only: this one finds the rows without a problem. */
export const MYSQL = `\
CREATE TABLE IF NOT EXISTS turnwise_outbox (
    id bigint NOT NULL AUTO_INCREMENT PRIMARY KEY,
    job longtext NOT NULL,
    added_at timestamp(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    problem varchar(700),
    INDEX turnwise_outbox_waiting (problem, id)
) ENGINE = InnoDB CHARACTER SET utf8mb4;
`;

/** A connection to SQLite: `DatabaseSync` of `node:sqlite`, `Database` of `better-sqlite3` or of `bun:sqlite`. */
export interface SqliteConnection {
  exec(sql: string): unknown;
  prepare(sql: string): { run(...values: any[]): unknown; all(...values: any[]): unknown[] };
  close(): unknown;
}

/** A connection to PostgreSQL: a `Client` of `pg`, or what `pool.connect()` returns. */
export interface PostgresqlConnection {
  query(text: string, values?: any[]): Promise<{ rows: any[] }>;
}

/** A connection to PostgreSQL that is a relay's own: `new pg.Client(…)`, which the relay connects and ends. */
export interface PostgresqlClient extends PostgresqlConnection {
  connect(): Promise<unknown>;
  end(): Promise<unknown>;
  on(event: "error" | "notification", listener: (...values: any[]) => void): unknown;
}

/** A connection to MySQL 8 or MariaDB 10.6 and later: one of `mysql2/promise`, of its own or from a pool. */
export interface MysqlConnection {
  query(sql: string, values?: any): Promise<[any, any]>;
  beginTransaction(): Promise<unknown>;
  end(): Promise<unknown>;
  on(event: "error", listener: (...values: any[]) => void): unknown;
}

type AsyncConnection = PostgresqlConnection | MysqlConnection;
type Connection = SqliteConnection | AsyncConnection;
/** What a relay connects to: its own connection. */
export type Connect = () => SqliteConnection | PostgresqlClient | Promise<PostgresqlClient | MysqlConnection>;

export interface NotifyOption {
  /**
   * Whether a row in PostgreSQL notifies the relay: yes otherwise. Commits that notify wait for each other: with thousands of them per
   * second, set this to `false`.
   */
  notify?: boolean | undefined;
}

/** What a job states beside its task and its input. */
export type OutboxTerms = Omit<AddTerms, "task"> & NotifyOption;

/** Adds a job of a task with the transaction of this connection. With SQLite, no promise is returned: `BEGIN`, `add`, `COMMIT` are one turn. */
export function add<I, R>(connection: SqliteConnection, task: Task<I, R, any>, input: NoInfer<I>, terms?: OutboxTerms): Handle<R>;
export function add<I, R>(connection: AsyncConnection, task: Task<I, R, any>, input: NoInfer<I>, terms?: OutboxTerms): Promise<Handle<R>>;
export function add(connection: Connection, task: Task<any, any, any>, input: unknown, terms: OutboxTerms = {}) {
  const { notify, ...stated } = terms;
  const checked = task.options.input?.["~standard"].validate(input);
  const what = `the input of ${task.name}`;
  const handle = (id: string) => task.app.client.handle(task.app.type, id);
  if (isSqlite(connection)) {
    if (checked instanceof Promise) throw new TypeError("the schema validates later, when the transaction may be over: use `addJob` with `await task.job(…)`");
    if (checked) passed(checked, what);
    return handle(addJob(connection, task.stated(input, stated)));
  }
  return (async () => {
    if (checked) passed(await checked, what);
    return handle(await addJob(connection, task.stated(input, stated), { notify }));
  })();
}

/** Adds a job with the transaction of this connection: what `Client.addMany` takes, or `await task.job(…)`. Returns its id. */
export function addJob(connection: SqliteConnection, job: NewJob): string;
export function addJob(connection: AsyncConnection, job: NewJob, options?: NotifyOption): Promise<string>;
export function addJob(connection: Connection, job: NewJob, { notify = true }: NotifyOption = {}): string | Promise<string> {
  const { id, job: text } = row(job);
  if (isSqlite(connection)) {
    connection.prepare(INSERT).run(text);
    return id;
  }
  if (isMysql(connection)) return connection.query(INSERT, [text]).then(() => id);
  if ("totalCount" in connection || "getConnection" in connection) throw new TypeError("a pool has no transaction: pass one of its connections");
  const insert = INSERT.replace("?", "$1");
  const sql = notify ? `WITH added AS (${insert}) SELECT pg_notify('${CHANNEL}', '')` : insert;
  return connection.query(sql, [text]).then(() => id);
}

/**
 * What `addJob` inserts, for any other driver or mapper: `INSERT INTO turnwise_outbox (job) VALUES (…)` with `job`. In PostgreSQL, `NOTIFY
 * turnwise_outbox` spares the relay its wait.
 */
export function row(job: NewJob): { id: string; job: string } {
  if (!isIdempotent(job)) {
    throw new TypeError("a relay may add a job twice: `if_exists` cannot be `again` here, nor a key's `on_conflict` be `after`");
  }
  const { delay_ms, ...stated } = job;
  const id = job.id ?? newId();
  // A delay counts from now on, and not from when the relay comes.
  const start = delay_ms == null ? {} : { not_before_us: (Date.now() + delay_ms) * 1000 };
  return { id, job: JSON.stringify({ ...stated, id, ...start }) };
}

/**
 * Creates the table of the outbox, unless it is there. A migration may instead have the text of `SQLITE`, `POSTGRESQL` or `MYSQL`. In MySQL,
 * creating a table commits the transaction.
 */
export async function createTable(connection: Connection): Promise<void> {
  if (isSqlite(connection)) connection.exec(SQLITE);
  else await connection.query(isMysql(connection) ? MYSQL : POSTGRESQL);
}

function isSqlite(connection: object): connection is SqliteConnection {
  return "exec" in connection && "prepare" in connection;
}

function isMysql(connection: object): connection is MysqlConnection {
  return "beginTransaction" in connection;
}

/** What is in an outbox. */
export interface OutboxStats {
  /** Rows that wait for the relay. */
  waiting: number;
  /** How long the oldest of them has waited, in seconds; 0 if there is none. */
  lag: number;
  /** Rows that the server has refused. The column `problem` says why. */
  refused: number;
}

type RowId = number | string;
interface Row {
  id: RowId;
  job: string;
}

/** The rows of an outbox, as a relay uses them. */
interface Rows {
  /** Takes rows behind the one with the id `after`. Until `done` or `giveBack`, another relay takes others, where the database can do this. */
  take(count: number, after: RowId): Promise<Row[]>;
  done(added: RowId[], problems: Map<RowId, string>): Promise<void>;
  giveBack(): Promise<void>;
  stats(): Promise<OutboxStats>;
  /** Waits until there may be a row. */
  wait(ms: number, signal: AbortSignal): Promise<void>;
  close(): Promise<void>;
}

class SqliteRows implements Rows {
  readonly #connection: SqliteConnection;

  constructor(connection: SqliteConnection) {
    this.#connection = connection;
    // The driver would wait in the event loop, and so hold up all else that the process does.
    connection.exec("PRAGMA busy_timeout = 0");
  }

  take(count: number, after: RowId): Promise<Row[]> {
    const sql = "SELECT id, job FROM turnwise_outbox WHERE problem IS NULL AND id > ? ORDER BY id LIMIT ?";
    return patiently(() => this.#all<Row>(sql, after, count));
  }

  async done(added: RowId[], problems: Map<RowId, string>): Promise<void> {
    const connection = this.#connection;
    await patiently(() => {
      connection.exec("BEGIN IMMEDIATE");
      try {
        connection.prepare("DELETE FROM turnwise_outbox WHERE id IN (SELECT value FROM json_each(?))").run(JSON.stringify(added));
        const refuse = connection.prepare("UPDATE turnwise_outbox SET problem = ? WHERE id = ?");
        for (const [id, problem] of problems) refuse.run(problem, id);
        connection.exec("COMMIT");
      } catch (error) {
        connection.exec("ROLLBACK");
        throw error;
      }
    });
  }

  async giveBack(): Promise<void> {}

  async stats(): Promise<OutboxStats> {
    const sql = `SELECT count(*) FILTER (WHERE problem IS NULL) AS waiting, count(*) FILTER (WHERE problem IS NOT NULL) AS refused,
      coalesce((julianday('now') - julianday(min(added_at) FILTER (WHERE problem IS NULL))) * 86400, 0) AS lag FROM turnwise_outbox`;
    const [{ waiting, refused, lag }] = (await patiently(() => this.#all<OutboxStats>(sql))) as [OutboxStats];
    return { waiting, lag: Math.max(lag, 0), refused };
  }

  wait(ms: number, signal: AbortSignal): Promise<void> {
    return sleep(ms, signal, true);
  }

  async close(): Promise<void> {
    this.#connection.close();
  }

  #all<T>(sql: string, ...values: unknown[]): T[] {
    return this.#connection.prepare(sql).all(...values) as T[];
  }
}

/** Tries again while another connection has locked the file of SQLite. */
async function patiently<T>(work: () => T): Promise<T> {
  for (const end = performance.now() + BUSY_MS; ; await sleep(BUSY_LOOK_MS)) {
    try {
      return work();
    } catch (error) {
      if (!/is locked/.test(String(error)) || performance.now() > end) throw error;
    }
  }
}

class PostgresqlRows implements Rows {
  readonly #client: PostgresqlClient;
  /** Whether there was a notification since the last wait. */
  #notified = false;
  #wake: () => void = () => {};

  constructor(client: PostgresqlClient) {
    this.#client = client;
    const notified = () => {
      this.#notified = true;
      this.#wake();
    };
    client.on("notification", notified);
    // Without a listener, a lost connection would end the process. The next query reports it.
    client.on("error", notified);
  }

  static async open(client: PostgresqlClient): Promise<PostgresqlRows> {
    const rows = new PostgresqlRows(client);
    try {
      await client.connect();
      await client.query(`LISTEN ${CHANNEL}`);
      return rows;
    } catch (error) {
      await client.end().catch(() => {});
      throw error;
    }
  }

  async take(count: number, after: RowId): Promise<Row[]> {
    // If this relay dies, the database gives its rows back.
    await this.#client.query("BEGIN");
    const sql = "SELECT id, job FROM turnwise_outbox WHERE problem IS NULL AND id > $1 ORDER BY id LIMIT $2 FOR UPDATE SKIP LOCKED";
    return (await this.#client.query(sql, [after, count])).rows;
  }

  async done(added: RowId[], problems: Map<RowId, string>): Promise<void> {
    await this.#client.query("DELETE FROM turnwise_outbox WHERE id = ANY($1::bigint[])", [added]);
    for (const [id, problem] of problems) await this.#client.query("UPDATE turnwise_outbox SET problem = $1 WHERE id = $2", [problem, id]);
    await this.#client.query("COMMIT");
  }

  async giveBack(): Promise<void> {
    // If the connection is lost, the rows are free already.
    await this.#client.query("ROLLBACK").catch(() => {});
  }

  async stats(): Promise<OutboxStats> {
    const sql = `SELECT count(*) FILTER (WHERE problem IS NULL)::float8 AS waiting, count(*) FILTER (WHERE problem IS NOT NULL)::float8 AS refused,
      coalesce(extract(epoch FROM clock_timestamp() - min(added_at) FILTER (WHERE problem IS NULL)), 0)::float8 AS lag FROM turnwise_outbox`;
    const [{ waiting, refused, lag }] = (await this.#client.query(sql)).rows as [OutboxStats];
    return { waiting, lag: Math.max(lag, 0), refused };
  }

  async wait(ms: number, signal: AbortSignal): Promise<void> {
    if (!this.#notified) {
      const woken = new AbortController();
      this.#wake = () => woken.abort();
      signal.addEventListener("abort", this.#wake, { once: true });
      await sleep(signal.aborted ? 0 : ms, woken.signal, true);
      signal.removeEventListener("abort", this.#wake);
    }
    this.#notified = false;
  }

  async close(): Promise<void> {
    await this.#client.end();
  }
}

class MysqlRows implements Rows {
  readonly #connection: MysqlConnection;

  constructor(connection: MysqlConnection) {
    this.#connection = connection;
    // Without a listener, a lost connection would end the process. The next query reports it.
    connection.on("error", () => {});
  }

  static async open(connection: MysqlConnection): Promise<MysqlRows> {
    const rows = new MysqlRows(connection);
    // At another level, the locks of rows that are read keep the application from inserting rows behind them.
    await connection.query("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED");
    return rows;
  }

  async take(count: number, after: RowId): Promise<Row[]> {
    // If this relay dies, the database gives its rows back.
    await this.#connection.beginTransaction();
    const sql = "SELECT id, job FROM turnwise_outbox WHERE problem IS NULL AND id > ? ORDER BY id LIMIT ? FOR UPDATE SKIP LOCKED";
    return (await this.#connection.query(sql, [after, count]))[0];
  }

  async done(added: RowId[], problems: Map<RowId, string>): Promise<void> {
    if (added.length > 0) await this.#connection.query("DELETE FROM turnwise_outbox WHERE id IN (?)", [added]);
    for (const [id, problem] of problems) await this.#connection.query("UPDATE turnwise_outbox SET problem = ? WHERE id = ?", [problem, id]);
    await this.#connection.query("COMMIT");
  }

  async giveBack(): Promise<void> {
    // If the connection is lost, the rows are free already.
    await this.#connection.query("ROLLBACK").catch(() => {});
  }

  async stats(): Promise<OutboxStats> {
    const sql = `SELECT count(if(problem IS NULL, 1, NULL)) AS waiting, count(problem) AS refused,
      coalesce(timestampdiff(microsecond, min(if(problem IS NULL, added_at, NULL)), current_timestamp(6)), 0) AS lag_us FROM turnwise_outbox`;
    const [[{ waiting, refused, lag_us }]] = await this.#connection.query(sql);
    return { waiting, lag: Math.max(lag_us / 1e6, 0), refused };
  }

  wait(ms: number, signal: AbortSignal): Promise<void> {
    return sleep(ms, signal, true);
  }

  async close(): Promise<void> {
    await this.#connection.end();
  }
}

export interface RelayOptions {
  /** How many rows it passes on with one request: 500 otherwise, and at most 1,000. */
  batch?: number | undefined;
  /** How often it looks for rows without a notification, in seconds: 1 otherwise. */
  poll?: number | undefined;
  /** Gets lines about what fails. They go to stderr otherwise. */
  say?: ((line: string) => void) | undefined;
}

/**
 * Passes the rows of an outbox to the server. `connect` makes a connection to the database, which is the relay's own and which it closes:
 * `() => new pg.Client(url)`, `() => mysql.createConnection(url)`, `() => new DatabaseSync(file)`.
 *
 * A row that the server refuses stays, with the reason in its column `problem`, and holds up no other. Set the column to null to try again.
 */
export class Relay {
  readonly #connect: Connect;
  readonly #client: Client;
  readonly #batch: number;
  readonly #pollMs: number;
  readonly #say: (line: string) => void;
  readonly #stopping = new AbortController();
  #open: Promise<Rows> | undefined;
  /** The types and tenants of which the server takes no job now, and until when they are left alone. */
  readonly #full = new Map<string, number>();
  /** While there are some, the next step goes on behind this row, so that theirs hold up none. */
  #after: RowId = 0;
  /** How many requests in a row were refused for such a reason. */
  #waits = 0;

  constructor(connect: Connect, client: Client, options: RelayOptions = {}) {
    const { batch = BATCH, poll = 1, say = (line) => console.error(`turnwise-outbox: ${line}`) } = options;
    if (!(batch >= 1 && batch <= 1000)) throw new TypeError("a batch has 1 to 1000 jobs");
    this.#connect = connect;
    this.#client = client;
    this.#batch = batch;
    this.#pollMs = milliseconds(poll);
    this.#say = say;
  }

  /** What waits, and for how long. */
  async stats(): Promise<OutboxStats> {
    return (await this.#rows()).stats();
  }

  /** Makes `run` return after its current batch. */
  stop(): void {
    this.#stopping.abort();
  }

  /** Closes the connection to the database. */
  async close(): Promise<void> {
    const open = this.#open;
    this.#open = undefined;
    // What fails here is closed.
    await open?.then((rows) => rows.close()).catch(() => {});
  }

  /** Passes rows on until it is stopped. Errors of the server and of the database are reported, and it tries again. */
  async run(): Promise<void> {
    const { signal } = this.#stopping;
    let pause = FIRST_PAUSE_MS;
    while (!signal.aborted) {
      try {
        if ((await this.step()) === 0) await (await this.#rows()).wait(this.#pollMs, signal);
        pause = FIRST_PAUSE_MS;
      } catch (error) {
        this.#say(`the outbox is not passed on: ${error instanceof Error ? error.message : error}; again in ${pause / 1000} s`);
        await this.close();
        await sleep(pause, signal, true);
        pause = Math.min(2 * pause, LONGEST_PAUSE_MS);
      }
    }
    await this.close();
  }

  /** Passes one batch on. Returns how many rows it had. Throws what the server or the database throws, and then the rows stay. */
  async step(): Promise<number> {
    const outbox = await this.#rows();
    const added: RowId[] = [];
    const refusals = new Map<RowId, TurnwiseError>();
    let rows: Row[];
    this.#waits = 0;
    for (const [lane, until] of this.#full) {
      if (until > performance.now()) continue;
      this.#full.delete(lane);
      this.#after = 0;
    }
    try {
      rows = await outbox.take(this.#batch, this.#after);
      const ready = this.#full.size === 0 ? rows : rows.filter((row) => !this.#full.has(laneOf(row)));
      for (const part of parts(ready)) await this.#passOn(part, added, refusals);
      const [first] = refusals.values();
      // The token may lack a scope, and no row is at fault.
      if (first && added.length === 0 && [...refusals.values()].every(({ status }) => status === 403)) throw first;
      await outbox.done(added, new Map([...refusals].map(([id, { message }]) => [id, message.slice(0, PROBLEM_CHARS)])));
      if (this.#full.size > 0) this.#after = rows.at(-1)?.id ?? this.#after;
    } catch (error) {
      await outbox.giveBack();
      throw error;
    }
    for (const [id, { message }] of refusals) this.#say(`row ${id} of the outbox is refused: ${message}`);
    return this.#waits > MAX_WAITS ? 0 : rows.length;
  }

  /** Adds the jobs of these rows. If the server refuses one of them, it is found by halves. */
  async #passOn(rows: Row[], added: RowId[], refusals: Map<RowId, TurnwiseError>): Promise<void> {
    if (this.#waits > MAX_WAITS) return;
    try {
      // One attempt at each server: the caller tries again.
      await this.#client.call("POST", ["jobs"], { body: `{"jobs":[${rows.map(({ job }) => job).join(",")}]}`, retryFor: 0 });
      this.#waits = 0;
      for (const { id } of rows) added.push(id);
    } catch (error) {
      if (error instanceof TurnwiseError && error.status === 429) {
        this.#waits += 1;
        return this.#findRoom(rows, added, refusals, error);
      }
      if (!(error instanceof TurnwiseError) || !isRefusal(error)) throw error;
      const [first] = rows;
      if (first && rows.length === 1) {
        refusals.set(first.id, error);
        return;
      }
      const half = rows.length >> 1;
      await this.#passOn(rows.slice(0, half), added, refusals);
      await this.#passOn(rows.slice(half), added, refusals);
    }
  }

  /** Finds which tenants among these rows have as many waiting jobs as they may, and adds what there is room for. */
  async #findRoom(rows: Row[], added: RowId[], refusals: Map<RowId, TurnwiseError>, error: TurnwiseError): Promise<void> {
    if (this.#waits > MAX_WAITS) {
      this.#say(`the server takes no more jobs now: ${error.message}`);
      return;
    }
    const lanes = [...new Set(rows.map(laneOf))];
    const [lane = ""] = lanes;
    if (rows.length === 1) {
      this.#full.set(lane, performance.now() + FULL_MS);
      return;
    }
    const first = new Set(lanes.slice(0, lanes.length >> 1));
    const half = rows.length >> 1;
    const isFirst = (row: Row, at: number): boolean => (lanes.length > 1 ? first.has(laneOf(row)) : at < half);
    await this.#passOn(rows.filter(isFirst), added, refusals);
    if (lanes.length > 1 || !this.#full.has(lane)) await this.#passOn(rows.filter((row, at) => !isFirst(row, at)), added, refusals);
  }

  #rows(): Promise<Rows> {
    this.#open ??= this.#opened().catch((error: unknown) => {
      this.#open = undefined;
      throw error;
    });
    return this.#open;
  }

  async #opened(): Promise<Rows> {
    const connection = await this.#connect();
    if (isSqlite(connection)) return new SqliteRows(connection);
    return isMysql(connection) ? MysqlRows.open(connection) : PostgresqlRows.open(connection);
  }
}

/** The type and the tenant of a row's job. */
function laneOf({ job }: Row): string {
  try {
    const { type, tenant } = JSON.parse(job) as NewJob;
    return JSON.stringify([type, tenant]);
  } catch {
    // The server refuses it.
    return "";
  }
}

/** Whether a row is at fault: the server says so, and does not have an error of its own. */
function isRefusal({ error, status, temporary }: TurnwiseError): boolean {
  return status >= 400 && status < 500 && status !== 401 && !temporary && error !== "foreign_answer";
}

/** Rows in parts that one request holds. */
function parts(rows: Row[]): Row[][] {
  const all: Row[][] = [];
  let chars = Infinity;
  for (const row of rows) {
    chars += row.job.length;
    if (chars > BATCH_CHARS) {
      all.push([]);
      chars = row.job.length;
    }
    all.at(-1)?.push(row);
  }
  return all;
}
