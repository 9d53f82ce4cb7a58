import type { App } from "./app.js";
import type { Client } from "./client.js";
import { TurnwiseError, milliseconds } from "./errors.js";
import type { Register, Registered } from "./models.js";
import { Session } from "./session.js";

export interface WorkerOptions {
  /** The client whose server the worker asks for jobs. Otherwise that of the app. */
  client?: Client | undefined;
  /** How many jobs it runs at the same time: 8 otherwise. */
  slots?: number | undefined;
  /** A name for people. */
  name?: string | undefined;
  /** How long `stop` waits for the jobs that run, in seconds: 20 otherwise. */
  grace?: number | undefined;
  /** Whether it writes the schedules of its tasks when it starts: yes otherwise. */
  schedules?: boolean | undefined;
  /** Gets lines about the worker itself. They go to stderr otherwise. */
  say?: ((line: string) => void) | undefined;
}

/** Runs the jobs of an app. */
export class Worker {
  readonly app: App;
  readonly #options: WorkerOptions;
  readonly #stopping = new AbortController();
  readonly #now = new AbortController();
  readonly #say: (line: string) => void;

  constructor(app: App, options: WorkerOptions = {}) {
    if (app.tasks.size === 0) throw new TypeError("the app has no tasks");
    this.app = app;
    this.#options = options;
    this.#say = options.say ?? ((line) => console.error(`turnwise-worker ${app.type}: ${line}`));
  }

  /**
   * Works until `stop`, or until an operator has drained the worker. Rejects if the server refuses it, for example because of its token.
   * If the server has removed it, its runs are lost, and it registers again.
   */
  async run(): Promise<void> {
    const { signal: stopping } = this.#stopping;
    try {
      const client = this.#options.client ?? this.app.client;
      if (this.#options.schedules ?? true) await this.app.putSchedules(client, { signal: stopping });
      for (;;) {
        const registered = await this.#register(client);
        this.#say(`registered as ${registered.worker}`);
        const session = new Session(
          {
            app: this.app,
            http: client.http,
            slots: this.#slots,
            graceMs: milliseconds(this.#options.grace ?? 20),
            stopping,
            now: this.#now.signal,
            say: this.#say,
          },
          registered,
        );
        const end = await session.work();
        if (end !== "expired" || stopping.aborted) {
          this.#say(end);
          return;
        }
        this.#say("removed by the server: registers again");
      }
    } catch (error) {
      if (stopping.aborted && error === stopping.reason) return;
      throw error;
    }
  }

  /**
   * Takes no new jobs, waits for the grace, and gives the rest back. A second call ends the worker at once: the server gives its jobs to
   * others after the health timeout.
   */
  stop(): void {
    if (this.#stopping.signal.aborted) this.#now.abort();
    else this.#stopping.abort(new TurnwiseError("stopped", "the worker stops", ""));
  }

  get #slots(): number {
    return this.#options.slots ?? 8;
  }

  #register(client: Client): Promise<Registered> {
    const body = registration(this.app, this.#slots, this.#options.name);
    const onFailure = (error: TurnwiseError) => this.#say(`cannot register, asking again: ${error.message}`);
    const more = { body, retryFor: Infinity, onFailure, signal: this.#stopping.signal };
    return client.call<Registered>("POST", ["workers", this.app.type], more);
  }
}

/** @internal What a worker of an app states when it registers. */
export function registration(app: App, slots: number, name?: string): Register {
  const tasks = [...app.tasks.values()];
  const terms = tasks.map((task) => [task.name, task.terms()] as const).filter(([, stated]) => Object.keys(stated).length > 0);
  const ofTasks = tasks.filter((task) => task.options.slots !== undefined).map((task) => [task.name, task.options.slots as number]);
  return {
    slots,
    tasks: tasks.map((task) => task.name),
    ...(name ? { name } : {}),
    ...(terms.length > 0 ? { task_terms: Object.fromEntries(terms) } : {}),
    ...(ofTasks.length > 0 ? { task_slots: Object.fromEntries(ofTasks) } : {}),
  };
}
