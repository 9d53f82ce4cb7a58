// Requests and answers: servers, time limits, repeats.
import { TurnwiseError } from "./errors.js";
import { Backoff, Waits, isCut, sleep } from "./waits.js";

/** The time limit of a request, beyond the time that it waits on the server. */
const ANSWER_TIMEOUT_MS = 30_000;
/** The shorter limit while there is another server to ask. */
const FAILOVER_TIMEOUT_MS = 10_000;
/** The largest answer that the client reads. */
const MAX_ANSWER_BYTES = 256 * 2 ** 20;
/** How much of an answer that is not understood appears in the error. */
const SHOWN_CHARS = 200;
/** The longest pause that the client lets a server ask for. */
const LONGEST_RETRY_AFTER_MS = 60_000;
/** What `fetch` reports if nothing was sent. */
const UNSENT = new Set(["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "EHOSTUNREACH", "ENETUNREACH", "UND_ERR_CONNECT_TIMEOUT"]);

export interface Request {
  method: "GET" | "POST" | "PUT" | "DELETE";
  /** The segments of the path below `/v1`. */
  path: readonly string[];
  query?: Record<string, string | number | boolean | undefined>;
  /** An object, or JSON as text. */
  body?: unknown;
  headers?: Record<string, string>;
  /** How long the request waits on the server, in ms. */
  wait?: number;
  /** The parameter of the query that states the wait. */
  waitParameter?: string;
  /** Makes the body for a wait, in place of `body`. */
  bodyFor?: (waitMs: number) => string;
  /** How long an answer may take beyond the wait, in ms. */
  timeout?: number;
  /** How long the request is repeated, in ms: `retryFor` of the client otherwise. */
  retryFor?: number;
  /** Whether a repeat is harmless although the request may have taken effect. */
  idempotent?: boolean;
  /** Whether to repeat after an error that is not temporary. */
  repeatAfter?: (error: TurnwiseError) => boolean;
  signal?: AbortSignal | undefined;
  /** Called after each attempt without an answer. */
  onFailure?: (error: TurnwiseError) => void;
}

export interface Answer {
  status: number;
  type: string;
  body: Uint8Array;
}

export interface HttpOptions {
  /** The server's URL, or several on one store with commas between them. */
  server: string;
  token?: string | undefined;
  retryForMs: number;
}

interface Server {
  url: string;
  authorization: string | undefined;
}

export class Http {
  readonly #servers: Server[];
  #current = 0;
  readonly #token: string | undefined;
  readonly #retryForMs: number;
  readonly #waits = new Waits();

  constructor(options: HttpOptions) {
    if (options.token !== undefined && !/^[\x21-\x7e]+$/.test(options.token)) {
      throw new TurnwiseError("invalid_token", "the token has characters that no token has", "check TURNWISE_TOKEN, or the option `token`");
    }
    this.#token = options.token;
    this.#retryForMs = options.retryForMs;
    this.#servers = options.server.split(",").map((url) => parseServer(url.trim()));
  }

  /** The URL of the current server, without a password. */
  get server(): string {
    return this.#server.url;
  }

  get #server(): Server {
    return this.#servers[this.#current] as Server;
  }

  get #many(): boolean {
    return this.#servers.length > 1;
  }

  /** Sends a request until it has an answer, and returns its JSON. */
  async call<T>(request: Request): Promise<T> {
    const { answer } = await this.knowing(request);
    return json(answer, this.server) as T;
  }

  /** The same; also tells whether an attempt before the last may have taken effect. */
  async knowing(request: Request): Promise<{ answer: Answer; worked: boolean }> {
    const backoff = new Backoff(this.#servers.length - 1);
    const retryFor = request.retryFor ?? this.#retryForMs;
    let spent = 0;
    let worked = false;
    for (;;) {
      request.signal?.throwIfAborted();
      const others = backoff.attempts + 1 < this.#servers.length;
      const limit = request.timeout ?? ANSWER_TIMEOUT_MS;
      const wait = this.#waits.longest(request.wait ?? 0);
      const asked = performance.now();
      try {
        const timeout = others ? Math.min(limit, FAILOVER_TIMEOUT_MS) : limit;
        return { answer: await this.once(request, wait, timeout), worked };
      } catch (error) {
        if (!(error instanceof TurnwiseError)) throw error;
        const took = performance.now() - asked;
        const noAnswer = error.error === "no_answer";
        const cut = noAnswer && isCut(wait, took, error.mayHaveWorked);
        const pause = cut ? 0 : Math.max(backoff.next(), error.retryAfterMs);
        spent += Math.max(took - wait, 0) + pause;
        worked ||= error.mayHaveWorked;
        const harmless = request.idempotent !== false || !error.mayHaveWorked;
        const passes = error.temporary || (request.repeatAfter?.(error) ?? false);
        if (!passes || !harmless || (!others && spent > retryFor)) {
          throw worked && error.status === 404 ? goneAfterRepeat(error) : error;
        }
        if (!cut) request.onFailure?.(error);
        await sleep(pause, request.signal);
      }
    }
  }

  /** Sends a request once. If the server does not answer, the next request goes to another one. */
  async once(request: Request, wait = request.wait ?? 0, timeout = request.timeout ?? ANSWER_TIMEOUT_MS): Promise<Answer> {
    const server = this.#current;
    const asked = performance.now();
    try {
      const answer = await this.#exchange(request, wait, wait + timeout);
      this.#waits.learn(wait, performance.now() - asked, true, false);
      return answer;
    } catch (error) {
      if (error instanceof TurnwiseError) {
        this.#waits.learn(wait, performance.now() - asked, error.error !== "no_answer", error.mayHaveWorked);
        if (error.temporary || error.status === 500) this.leave(server);
      }
      throw error;
    }
  }

  /** The next request goes to another server. */
  leave(server = this.#current): void {
    if (this.#many && server === this.#current) this.#current = (server + 1) % this.#servers.length;
  }

  async #exchange(request: Request, wait: number, timeout: number): Promise<Answer> {
    const limit = limited(timeout, request.signal);
    try {
      const response = await this.#send(request, wait, limit.signal);
      const type = response.headers.get("content-type") ?? "";
      const answer = { status: response.status, type, body: await read(response, this.server) };
      if (!response.ok) throw refusal(response, answer, this.server);
      return answer;
    } catch (error) {
      throw this.#understand(error, request, limit);
    } finally {
      limit.end();
    }
  }

  /** Opens a stream: returns when the head of the answer has arrived. The caller ends it by its signal. */
  async open(request: Request, signal: AbortSignal): Promise<Response> {
    const limit = limited(ANSWER_TIMEOUT_MS, signal);
    const opened = new AbortController();
    const stop = () => opened.abort(limit.signal.reason);
    limit.signal.addEventListener("abort", stop, { once: true });
    try {
      const response = await this.#send(request, 0, opened.signal);
      if (response.ok) {
        signal.addEventListener("abort", () => opened.abort(signal.reason), { once: true });
        return response;
      }
      const body = await read(response, this.server);
      throw refusal(response, { status: response.status, type: "", body }, this.server);
    } catch (error) {
      throw this.#understand(error, request, limit);
    } finally {
      limit.signal.removeEventListener("abort", stop);
      limit.end();
    }
  }

  #send(request: Request, wait: number, signal: AbortSignal): Promise<Response> {
    const path = request.path.map((segment) => `/${encoded(segment)}`).join("");
    const query = new URLSearchParams();
    for (const [name, value] of Object.entries(request.query ?? {})) {
      if (value !== undefined) query.set(name, String(value));
    }
    if (request.waitParameter) query.set(request.waitParameter, String(wait));
    const text = query.size > 0 ? `?${query}` : "";
    const headers: Record<string, string> = { ...request.headers };
    const authorization = this.#token === undefined ? this.#server.authorization : `Bearer ${this.#token}`;
    if (authorization) headers["authorization"] = authorization;
    const given = request.bodyFor ? request.bodyFor(wait) : request.body;
    const body = given === undefined || typeof given === "string" ? given : JSON.stringify(given);
    // The server takes no POST that is not declared as JSON, also without a body: a form of another site could send it.
    if (body !== undefined || request.method === "POST") headers["content-type"] = "application/json";
    const init: RequestInit = { method: request.method, headers, signal, redirect: "manual" };
    if (body !== undefined) init.body = body;
    return fetch(`${this.#server.url}/v1${path}${text}`, init);
  }

  #understand(error: unknown, request: Request, limit: Limit): unknown {
    if (error instanceof TurnwiseError) return error;
    if (request.signal?.aborted) return request.signal.reason;
    if (limit.late()) return noAnswer(this.server, `it takes longer than ${limit.ms / 1000} s`, true);
    const { cause } = error as { cause?: { code?: string; message?: string } };
    const text = cause?.message || cause?.code || (error as Error)?.message || String(error);
    return noAnswer(this.server, text, !UNSENT.has(cause?.code ?? ""));
  }
}

interface Limit {
  signal: AbortSignal;
  ms: number;
  late: () => boolean;
  end: () => void;
}

/** A signal that is aborted after a time, or with another one. */
function limited(ms: number, signal: AbortSignal | undefined): Limit {
  const controller = new AbortController();
  let late = false;
  const timer = setTimeout(() => {
    late = true;
    controller.abort();
  }, ms);
  const stop = () => controller.abort(signal?.reason);
  if (signal?.aborted) stop();
  else signal?.addEventListener("abort", stop, { once: true });
  const end = () => {
    clearTimeout(timer);
    signal?.removeEventListener("abort", stop);
  };
  return { signal: controller.signal, ms, late: () => late, end };
}

function parseServer(text: string): Server {
  let url: URL;
  try {
    url = new URL(text);
  } catch {
    throw new TurnwiseError("invalid_url", "the server's URL is no URL", "use one like http://127.0.0.1:7984");
  }
  if (url.protocol !== "http:" && url.protocol !== "https:") {
    throw new TurnwiseError("invalid_url", `the server's URL has the scheme ${url.protocol}`, "use http: or https:");
  }
  let authorization: string | undefined;
  if (url.username || url.password) {
    const login = `${decodeURIComponent(url.username)}:${decodeURIComponent(url.password)}`;
    authorization = `Basic ${base64(new TextEncoder().encode(login))}`;
  }
  return { url: `${url.protocol}//${url.host}${url.pathname.replace(/\/+$/, "")}`, authorization };
}

/** A segment of a path. `.` and `..` would be another path, however they are escaped. */
function encoded(segment: string): string {
  if (segment === "" || segment === "." || segment === "..") {
    throw new TurnwiseError("invalid_input", `a name is \`${segment}\``, "no name is empty, `.` or `..`");
  }
  return encodeURIComponent(segment.toWellFormed());
}

/** @internal */
export function base64(bytes: Uint8Array): string {
  let text = "";
  for (let at = 0; at < bytes.length; at += 0x8000) text += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
  return btoa(text);
}

async function read(response: Response, server: string): Promise<Uint8Array> {
  const tooLarge = () => foreign(server, response.status, `more than ${MAX_ANSWER_BYTES} bytes`);
  if (Number(response.headers.get("content-length") ?? 0) > MAX_ANSWER_BYTES) throw tooLarge();
  if (response.headers.has("content-length") || !response.body) return new Uint8Array(await response.arrayBuffer());
  const pieces: Uint8Array[] = [];
  let length = 0;
  for await (const piece of response.body as unknown as AsyncIterable<Uint8Array>) {
    length += piece.length;
    if (length > MAX_ANSWER_BYTES) throw tooLarge();
    pieces.push(piece);
  }
  const all = new Uint8Array(length);
  let at = 0;
  for (const piece of pieces) {
    all.set(piece, at);
    at += piece.length;
  }
  return all;
}

/** @internal The JSON of an answer. */
export function json(answer: Answer, server: string): unknown {
  try {
    return JSON.parse(new TextDecoder().decode(answer.body));
  } catch {
    // The text is left out: it may be a part of a job's options.
    throw foreign(server, answer.status, "no JSON");
  }
}

function refusal(response: Response, answer: Answer, server: string): TurnwiseError {
  const { status } = answer;
  const retryAfter = Number(response.headers.get("retry-after") ?? 0) * 1000;
  const retryAfterMs = retryAfter > 0 ? Math.min(retryAfter, LONGEST_RETRY_AFTER_MS) : 0;
  const text = new TextDecoder().decode(answer.body);
  let body: { error?: unknown; reason?: unknown; hint?: unknown } | undefined;
  try {
    body = JSON.parse(text);
  } catch {
    // Not one of the server's answers.
  }
  if (typeof body?.error === "string" && typeof body.reason === "string") {
    return new TurnwiseError(body.error, body.reason, typeof body.hint === "string" ? body.hint : "", {
      status,
      retryAfterMs,
      temporary: status === 408 || status === 429 || status === 503 || body.error === "superseded",
      mayHaveWorked: body.error === "unknown_outcome",
    });
  }
  if ([408, 429, 502, 503, 504].includes(status)) {
    return noAnswer(server, `${status} from a proxy in front of the server`, true, retryAfterMs);
  }
  return foreign(server, status, `\`${text.replaceAll(/[\u0000-\u001f\u007f]/g, "").slice(0, SHOWN_CHARS)}\``);
}

function noAnswer(server: string, cause: string, mayHaveWorked: boolean, retryAfterMs = 0): TurnwiseError {
  return new TurnwiseError("no_answer", `no answer from ${server}: ${cause}`, "", { mayHaveWorked, temporary: true, retryAfterMs });
}

/** @internal */
export function foreign(server: string, status: number, problem: string): TurnwiseError {
  return new TurnwiseError("foreign_answer", `${server} answered ${status} as turnwise does not: ${problem}`, "is the URL right?", { status });
}

/** A 404 after an attempt that may have worked: what was to be removed is gone. */
function goneAfterRepeat(error: TurnwiseError): TurnwiseError {
  return new TurnwiseError(error.error, error.reason, error.hint, { status: 404, mayHaveWorked: true });
}
