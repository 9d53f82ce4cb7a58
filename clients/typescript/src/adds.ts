// Adds that are asked for at the same time share requests: a request costs client and server several times as much as a job in it. Jobs of
// different types or tenants share nothing: while one tenant has as many waiting jobs as it may, the server refuses each request that has a job of it.
import { TurnwiseError } from "./errors.js";
import type { AddedJob } from "./models.js";

/** While so many requests are on their way, later adds wait for the next one, which takes all of them. */
const REQUESTS_AT_ONCE = 2;
/** As many fit into one transaction of all stores but etcd. */
const JOBS_PER_REQUEST = 100;
const CHARS_PER_REQUEST = 4_000_000;

/** A job to add, which is harmless to add again. */
export interface NewAdd {
  type: string;
  tenant: string | null | undefined;
  /** What the request states of it, as JSON. */
  text: string;
}

interface Waiting extends NewAdd {
  resolve: (added: AddedJob) => void;
  reject: (error: unknown) => void;
}

/** The adds of jobs of one type and tenant. */
interface Lane {
  waiting: Waiting[];
  sending: number;
}

export class Adds {
  readonly #send: (jobs: readonly NewAdd[]) => Promise<AddedJob[]>;
  readonly #lanes = new Map<string, Lane>();

  /** `send` sends one request. */
  constructor(send: (jobs: readonly NewAdd[]) => Promise<AddedJob[]>) {
    this.#send = send;
  }

  add(job: NewAdd): Promise<AddedJob> {
    return new Promise((resolve, reject) => {
      const key = JSON.stringify([job.type, job.tenant]);
      const lane = this.#lanes.get(key) ?? { waiting: [], sending: 0 };
      this.#lanes.set(key, lane);
      lane.waiting.push({ ...job, resolve, reject });
      this.#next(key, lane);
    });
  }

  #next(key: string, lane: Lane): void {
    if (lane.sending === 0 && lane.waiting.length === 0) this.#lanes.delete(key);
    if (lane.waiting.length === 0 || lane.sending >= REQUESTS_AT_ONCE) return;
    lane.sending += 1;
    // What the rest of this turn adds is sent with it.
    queueMicrotask(() => {
      void this.#sendBatch(take(lane)).then(() => {
        lane.sending -= 1;
        this.#next(key, lane);
      });
    });
  }

  /** Never rejects. */
  async #sendBatch(batch: Waiting[]): Promise<void> {
    if (batch.length === 0) return;
    try {
      const added = await this.#send(batch);
      batch.forEach((each, at) => each.resolve(added[at] as AddedJob));
    } catch (error) {
      const refused = error instanceof TurnwiseError && error.status >= 400 && error.status < 500 && !error.temporary;
      // If one of several is at fault, each gets an answer of its own.
      if (refused && batch.length > 1) await Promise.all(batch.map((each) => this.#sendBatch([each])));
      else for (const each of batch) each.reject(error);
    }
  }
}

/** The next jobs of a lane that share a request. */
function take(lane: Lane): Waiting[] {
  let chars = 0;
  let count = 0;
  for (const { text } of lane.waiting) {
    chars += text.length;
    if (count > 0 && (count >= JOBS_PER_REQUEST || chars > CHARS_PER_REQUEST)) break;
    count += 1;
  }
  return lane.waiting.splice(0, count);
}
