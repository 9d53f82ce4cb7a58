// Server-sent events, which go on after lost connections.
import { TurnwiseError } from "./errors.js";
import { Http, foreign, type Request } from "./http.js";
import { Backoff, sleep } from "./waits.js";

/** The server sends a comment every 15 s. If nothing arrives for this long, the connection is dead. */
const SILENCE_MS = 45_000;
/** Attempts to reconnect in a row, without an event between them, before the stream ends with an error. */
const MAX_ATTEMPTS = 20;
/** A stream that was open for this long is an answer of the server, also without an event. */
const LASTING_MS = 250;
/** The longest line that the parser accepts, in characters. */
const MAX_LINE = 2 ** 20;

export interface ServerSentEvent {
  name: string;
  data: string;
}

/** Assembles events from pieces of a stream, as the HTML standard defines it. */
export class SseParser {
  #line = "";
  #afterCr = false;
  #name = "";
  #data: string[] = [];
  #id: string | undefined;
  lastId: string | undefined;
  retryMs = 0;

  /** Starts a new stream: drops an unfinished event with its id, and keeps the last id. */
  restart(): void {
    this.#line = "";
    this.#afterCr = false;
    this.#name = "";
    this.#data = [];
    this.#id = undefined;
  }

  /** The events that this piece completes. */
  push(piece: string): ServerSentEvent[] {
    const events: ServerSentEvent[] = [];
    let text = piece;
    if (this.#afterCr && text.startsWith("\n")) text = text.slice(1);
    const lines = text.split(/\r\n|\n|\r/);
    for (const [at, part] of lines.entries()) {
      this.#line += part;
      if (this.#line.length > MAX_LINE) throw new RangeError("a line without an end");
      if (at === lines.length - 1) break;
      const event = this.#endLine(this.#line);
      this.#line = "";
      if (event) events.push(event);
    }
    if (piece !== "") this.#afterCr = piece.endsWith("\r");
    return events;
  }

  #endLine(line: string): ServerSentEvent | undefined {
    if (line === "") {
      this.lastId = this.#id ?? this.lastId;
      const event = this.#data.length > 0 ? { name: this.#name, data: this.#data.join("\n") } : undefined;
      this.restart();
      return event;
    }
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "event") this.#name = value;
    else if (field === "data") this.#data.push(value);
    else if (field === "id" && !value.includes("\0")) this.#id = value;
    else if (field === "retry" && /^\d+$/.test(value)) this.retryMs = Number(value);
    return undefined;
  }
}

/** The events of a stream. It ends with the stream of the server when `last` is true of an event. */
export async function* follow(
  http: Http,
  request: Request,
  last: (event: ServerSentEvent) => boolean,
): AsyncGenerator<ServerSentEvent, void, void> {
  const parser = new SseParser();
  let backoff = new Backoff();
  let failed = 0;
  for (;;) {
    const opened = performance.now();
    let began = false;
    try {
      for await (const event of stream(http, request, parser)) {
        if (event === "begun") {
          began = true;
          continue;
        }
        failed = 0;
        backoff = new Backoff();
        yield event;
        if (last(event)) return;
      }
      // 204: the last event has been received.
      if (!began) return;
    } catch (error) {
      request.signal?.throwIfAborted();
      if (!(error instanceof TurnwiseError) || !error.temporary || failed >= MAX_ATTEMPTS) throw error;
      http.leave();
    }
    if (began && performance.now() - opened >= LASTING_MS) {
      failed = 0;
      backoff = new Backoff();
    }
    failed += 1;
    if (failed > MAX_ATTEMPTS) throw new TurnwiseError("no_answer", "the stream ends again and again", "", { temporary: true });
    await sleep(Math.max(backoff.next(), Math.min(parser.retryMs, SILENCE_MS)), request.signal);
  }
}

async function* stream(http: Http, request: Request, parser: SseParser): AsyncGenerator<ServerSentEvent | "begun", void, void> {
  const headers: Record<string, string> = { ...request.headers, accept: "text/event-stream" };
  if (parser.lastId !== undefined) headers["last-event-id"] = parser.lastId;
  const ended = new AbortController();
  const stop = () => ended.abort(request.signal?.reason);
  request.signal?.addEventListener("abort", stop, { once: true });
  try {
    const response = await http.open({ ...request, headers }, ended.signal);
    if (response.status === 204 || !response.body) return;
    yield "begun";
    parser.restart();
    const decoder = new TextDecoder();
    const reader = response.body.getReader();
    for (;;) {
      const silent = setTimeout(() => ended.abort(), SILENCE_MS);
      let piece: Uint8Array | undefined;
      try {
        piece = (await reader.read()).value;
      } catch (error) {
        throw new TurnwiseError("no_answer", `the stream from ${http.server} broke: ${(error as Error).message}`, "", { temporary: true });
      } finally {
        clearTimeout(silent);
      }
      if (!piece) return;
      let events: ServerSentEvent[];
      try {
        events = parser.push(decoder.decode(piece, { stream: true }));
      } catch (error) {
        throw foreign(http.server, 200, (error as Error).message);
      }
      yield* events;
    }
  } finally {
    request.signal?.removeEventListener("abort", stop);
    ended.abort();
  }
}
