// Pauses between attempts, and how long requests wait on the server.

/** The shortest limit that the client learns. A request that failed in less than twice this time was not held by a gateway. */
const SHORTEST_MS = 100;
/** The waits that must pass uncut before the client tries longer ones. */
const UNCUT_BEFORE_LONGER = 16;

/**
 * The longest wait that passes the gateways between the client and the server. A wait that was cut after `t` lets the next ones take
 * `t / 2`. After 16 such waits without a cut, it doubles.
 */
export class Waits {
  #longest = Infinity;
  #uncut = 0;

  longest(wanted: number): number {
    return Math.floor(Math.min(wanted, this.#longest));
  }

  /** Learns from a request that was to wait for `wait`, and ended after `took`. */
  learn(wait: number, took: number, answered: boolean, mayHaveWorked: boolean): void {
    if (!answered) {
      if (isCut(wait, took, mayHaveWorked)) {
        this.#longest = Math.min(this.#longest, took / 2);
        this.#uncut = 0;
      }
    } else if (wait === Math.floor(this.#longest) && took >= wait) {
      this.#uncut += 1;
      if (this.#uncut >= UNCUT_BEFORE_LONGER) {
        this.#longest *= 2;
        this.#uncut = 0;
      }
    }
  }
}

/** Whether a request was cut while it waited as it was meant to. The next one may follow at once. */
export function isCut(wait: number, took: number, mayHaveWorked: boolean): boolean {
  return mayHaveWorked && took < wait && took >= SHORTEST_MS * 2;
}

const FIRST_PAUSE_MS = 100;
const LONGEST_PAUSE_MS = 5_000;

/** Pauses that double, with jitter. */
export class Backoff {
  attempts = 0;
  readonly #atOnce: number;

  /** Pauses that begin after this many attempts without one. */
  constructor(atOnce = 0) {
    this.#atOnce = atOnce;
  }

  next(): number {
    this.attempts += 1;
    const pauses = this.attempts - this.#atOnce - 1;
    if (pauses < 0) return 0;
    return Math.min(FIRST_PAUSE_MS * 2 ** Math.min(pauses, 10), LONGEST_PAUSE_MS) * (0.5 + Math.random() / 2);
  }
}

/** Sleeps for this long, or until the signal is aborted: then it rejects with the signal's reason, or resolves if `quietly`. */
export function sleep(ms: number, signal?: AbortSignal, quietly = false): Promise<void> {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      if (quietly) resolve();
      else reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, ms);
    if (signal?.aborted) stop();
    else signal?.addEventListener("abort", stop, { once: true });
  });
}
