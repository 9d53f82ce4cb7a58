import { gone, type Cancellable, type Client, type Handle } from "./client.js";
import type {
  FiredSchedule, Group as GroupRecord, NewGroup, NewJob, PutSchedule, RemovedGroup, RemovedSchedule, Schedule as ScheduleRecord, SchedulePreview,
} from "./models.js";
import { sleep } from "./waits.js";

/** How often `wait` looks at a group at most. */
const LONGEST_LOOK_MS = 2_000;

/** A handle of a group: jobs that end together. */
export class Group {
  readonly name: string;
  readonly tenant: string;
  readonly #client: Client;

  constructor(client: Client, name: string, tenant: string) {
    this.#client = client;
    this.name = name;
    this.tenant = tenant;
  }

  /** Creates the group. It is open: jobs can be added until `close`. */
  create(terms: Omit<NewGroup, "name" | "tenant"> = {}, more: Cancellable = {}): Promise<GroupRecord> {
    const body = { ...terms, name: this.name, tenant: this.tenant };
    return this.#client.call("POST", ["groups"], { body, ...more });
  }

  /** Adds jobs to the group. */
  add<R = unknown>(jobs: readonly NewJob[], more: Cancellable = {}): Promise<Handle<R>[]> {
    const members = jobs.map((job) => ({ ...job, group: this.name, tenant: this.tenant }));
    return this.#client.addMany<R>(members, more);
  }

  /** The record of the group now. */
  status(more: Cancellable = {}): Promise<GroupRecord> {
    return this.#client.call("GET", this.#path(), more);
  }

  /** Lets the group end with the last of its jobs. */
  close(more: Cancellable = {}): Promise<GroupRecord> {
    return this.#client.call("POST", [...this.#path(), "close"], more);
  }

  /** Waits until the group has ended. */
  async wait(more: Cancellable = {}): Promise<GroupRecord> {
    for (let pause = 50; ; pause = Math.min(pause * 2, LONGEST_LOOK_MS)) {
      const group = await this.status(more);
      if (group.state !== "open" && group.state !== "closed") return group;
      await sleep(pause, more.signal);
    }
  }

  /** Removes a group that has ended. Its jobs stay. */
  remove(more: Cancellable = {}): Promise<boolean> {
    return gone(this.#client.call<RemovedGroup>("DELETE", this.#path(), more));
  }

  #path(): string[] {
    return ["groups", this.tenant, this.name];
  }
}

/** A handle of a schedule, which adds a job at each of its times. */
export class Schedule {
  readonly name: string;
  readonly #client: Client;

  constructor(client: Client, name: string) {
    this.#client = client;
    this.name = name;
  }

  /** Writes the schedule, in place of the one with this name. */
  put(terms: PutSchedule, more: Cancellable = {}): Promise<ScheduleRecord> {
    return this.#client.call("PUT", this.#path(), { body: terms, ...more });
  }

  status(more: Cancellable = {}): Promise<ScheduleRecord> {
    return this.#client.call("GET", this.#path(), more);
  }

  /** The next times of the schedule. */
  preview(count = 10, more: Cancellable = {}): Promise<SchedulePreview> {
    return this.#client.call("GET", [...this.#path(), "preview"], { query: { count }, ...more });
  }

  /** Adds a job now. The request is not repeated if it may have worked: it would add another job. */
  fire(more: Cancellable = {}): Promise<FiredSchedule> {
    return this.#client.call("POST", [...this.#path(), "fire"], { idempotent: false, ...more });
  }

  pause(more: Cancellable = {}): Promise<ScheduleRecord> {
    return this.#client.call("POST", [...this.#path(), "pause"], more);
  }

  resume(more: Cancellable = {}): Promise<ScheduleRecord> {
    return this.#client.call("POST", [...this.#path(), "resume"], more);
  }

  /** Removes the schedule. The jobs that it has added stay. */
  remove(more: Cancellable = {}): Promise<boolean> {
    return gone(this.#client.call<RemovedSchedule>("DELETE", this.#path(), more));
  }

  #path(): string[] {
    return ["schedules", this.name];
  }
}
