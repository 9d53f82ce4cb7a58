"""Requests, answers and repetitions, without input and output.

What the clients do is written as generators that yield steps (`Attempt`, `Pause`, `Item`), so that `Client` and `AsyncClient`
share it: one performs the steps with blocking calls, the other on the event loop."""

from __future__ import annotations

import base64
import json
import math
import os
import random
import threading
import time
import urllib.parse
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from . import errors

T = TypeVar("T")

VERSION = "0.1.0"
DEFAULT_SERVER = "http://127.0.0.1:7984"
# How long requests are repeated unless the caller sets another time.
RETRY_FOR_S = 10.0
# The timeout of a request beyond the time that it waits on the server, and the shorter one while there are other servers.
ANSWER_TIMEOUT_S = 30.0
FAILOVER_TIMEOUT_S = 10.0
CONNECT_TIMEOUT_S = 5.0
MAX_ANSWER_BYTES = 256 << 20
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
# The shortest limit of waits that a client learns. A request that fails in less than twice this time was not held by a gateway.
SHORTEST_CUT_S = 0.1
UNCUT_BEFORE_LONGER = 16
SHOWN_CHARS = 200


def encode(value: Any) -> bytes:
    """JSON as the server takes it. Raises `ValueError` or `TypeError` if the value has no such form."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def path(*segments: str) -> str:
    """The path of these segments below `/v1`, percent-encoded."""
    if any(segment in ("", ".", "..") for segment in segments):
        raise errors.TurnwiseError("invalid", "a name is empty, `.` or `..`", "name it otherwise")
    return "/v1" + "".join("/" + urllib.parse.quote(segment, safe="") for segment in segments)


@dataclass(frozen=True)
class Request:
    """A request that can be repeated."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    # Of a request that waits as its body states: a function of the wait in ms.
    body: bytes | Callable[[int], bytes] | None = None
    # Whether repeating it is harmless whatever became of it. Otherwise it is repeated only while it certainly had no effect.
    idempotent: bool = True
    # How long it waits on the server, and the parameter that states this, if it is not the body.
    wait: float = 0
    wait_parameter: str | None = None
    timeout: float = ANSWER_TIMEOUT_S
    # How long it is repeated, if not as long as the client's other requests.
    retry_for: float | None = None


def query(**parameters: str | int | float | bool | None) -> tuple[tuple[str, str], ...]:
    """The parameters that are given, as a request states them."""
    given = {name: value for name, value in parameters.items() if value is not None}
    return tuple((name, str(value).lower() if isinstance(value, bool) else str(value)) for name, value in given.items())


@dataclass(frozen=True)
class Server:
    """A server: its URL without credentials, and the header of those that the URL had."""

    url: str
    authorization: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Attempt:
    """A step: send this to the server, and return an `Answer` or a `NoAnswer`."""

    request: Request
    server: Server
    wait: float
    timeout: float

    def url(self) -> str:
        query = self.request.query
        if self.request.wait_parameter:
            query = (*query, (self.request.wait_parameter, str(int(self.wait * 1000))))
        # Not the library's parameters: it would read a query in the URL again.
        return self.server.url + self.request.path + ("?" + urllib.parse.urlencode(query) if query else "")

    def body(self) -> bytes | None:
        body = self.request.body
        return body if body is None or isinstance(body, bytes) else body(int(self.wait * 1000))

    def headers(self, token: str | None) -> dict[str, str]:
        headers = {**dict(self.request.headers), "user-agent": f"turnwise-client-python/{VERSION}"}
        authorization = f"Bearer {token}" if token else self.server.authorization
        if authorization:
            headers["authorization"] = authorization
        # The server refuses a POST that is not declared as JSON, even without a body.
        if self.request.body is not None or self.request.method == "POST":
            headers["content-type"] = "application/json"
        return headers


@dataclass(frozen=True)
class Pause:
    """A step: do nothing for some seconds."""

    seconds: float


@dataclass(frozen=True)
class Item:
    """A step of a generator that lists something: here is the next one."""

    value: Any


@dataclass
class Answer:
    """A complete answer."""

    status: int
    media_type: str
    body: bytes
    parsed: Any = None

    def json(self) -> Any:
        """Its JSON, parsed once."""
        if self.parsed is None:
            self.parsed = json.loads(self.body)
        return self.parsed


Steps = Generator[Any, Any, T]


class Core:
    """What a client knows: its servers, its token, and how long requests may wait."""

    def __init__(self, url: str | Sequence[str] | None, token: str | None, retry_for: float) -> None:
        urls = url or os.environ.get("TURNWISE_SERVER") or DEFAULT_SERVER
        urls = urls.split(",") if isinstance(urls, str) else urls
        self.servers = [parse_server(each.strip()) for each in urls]
        self.token = os.environ.get("TURNWISE_TOKEN") or None if token is None else token
        if self.token is not None and not all("!" <= char <= "~" for char in self.token):
            raise ValueError("the token has characters that no token has")
        self.retry_for = retry_for
        self.current = 0
        self.longest_wait = math.inf
        self.uncut = 0
        self.lock = threading.Lock()

    def __repr__(self) -> str:
        return ", ".join(server.url for server in self.servers)

    def call(self, request: Request) -> Steps[tuple[Answer, bool]]:
        """Sends a request, and repeats it if that is harmless, until there is an answer or the time for retries is over. Also
        returns whether an attempt before the last may have taken effect."""
        retry_for = self.retry_for if request.retry_for is None else request.retry_for
        spent, attempts, worked = 0.0, 0, False
        while True:
            others = attempts + 1 < len(self.servers)
            timeout = min(request.timeout, FAILOVER_TIMEOUT_S) if others and request.idempotent else request.timeout
            at = self.current
            # The body or the parameter states the wait of this attempt.
            wait = min(request.wait, self.longest_wait)
            asked = time.monotonic()
            outcome = yield Attempt(request, self.servers[at], wait, timeout)
            took = time.monotonic() - asked
            failed = isinstance(outcome, errors.TurnwiseError)
            error: errors.TurnwiseError | None = outcome if failed else refusal(self.servers[at], outcome)
            self.learn(wait, took, error)
            if error is None:
                answer: Answer = outcome
                return answer, worked
            if error.may_pass or error.error == "internal_server_error":
                self.leave(at)
            pause = 0.0 if is_cut(wait, took, error) else self.pause(attempts)
            attempts += pause > 0 or others
            spent += max(0.0, took - wait) + pause
            harmless = request.idempotent or not error.may_have_worked
            # A worker goes on after internal errors, too.
            passes = error.may_pass or math.isinf(retry_for) and (error.status or 0) >= 500
            if not passes or not harmless or (not others and spent > retry_for):
                raise error
            worked |= error.may_have_worked
            yield Pause(pause)

    def read(self, request: Request) -> Steps[Any]:
        """Like `call`, with an answer in JSON."""
        answer, _ = yield from self.call(request)
        return answer.json()

    def pause(self, attempts: int) -> float:
        """The next pause: none until every server was asked once, then longer ones, with jitter."""
        pauses = attempts + 1 - len(self.servers)
        if pauses < 0:
            return 0.0
        return min(FIRST_PAUSE_S * 2.0 ** min(pauses, 10), LONGEST_PAUSE_S) * random.uniform(0.5, 1)

    def leave(self, at: int) -> None:
        """The next request goes to another server."""
        with self.lock:
            if self.current == at:
                self.current = (at + 1) % len(self.servers)

    def learn(self, wait: float, took: float, error: errors.TurnwiseError | None) -> None:
        """Learns how long requests may wait: a gateway may cut those that are not answered for a while. After a cut, waits are half
        as long; after 16 that were not cut, twice as long again."""
        with self.lock:
            if is_cut(wait, took, error):
                self.longest_wait, self.uncut = min(self.longest_wait, took / 2), 0
            elif error is None and wait == self.longest_wait and took >= wait:
                self.uncut += 1
                if self.uncut >= UNCUT_BEFORE_LONGER:
                    self.longest_wait, self.uncut = self.longest_wait * 2, 0


def is_cut(wait: float, took: float, error: errors.TurnwiseError | None) -> bool:
    """Whether a request was cut while it waited as it was meant to."""
    return isinstance(error, errors.NoAnswer) and error.maybe_sent and 2 * SHORTEST_CUT_S <= took < wait


def parse_server(url: str) -> Server:
    """A server's URL, which may have a name and a password. No message contains them."""
    try:
        parts = urllib.parse.urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        raise ValueError("the URL of the server is none") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError("the URL of a server is `http://host:port` or `https://host:port`")
    authorization = None
    if parts.username is not None:
        login = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
        authorization = "Basic " + base64.b64encode(login.encode()).decode()
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return Server(f"{parts.scheme}://{host}{port}{parts.path.rstrip('/')}", authorization)


def refusal(server: Server, answer: Answer) -> errors.TurnwiseError | None:
    """The error that an answer contains; `None` if it is a successful one."""
    status = answer.status
    if 200 <= status < 300:
        if answer.media_type == "application/json":
            try:
                answer.json()
            except ValueError:
                return errors.NoAnswer(server.url, "the answer is cut off, or is no JSON", maybe_sent=True)
        return None
    try:
        body = answer.json()
        texts = [body[name] for name in ("error", "reason", "hint")]
        if not all(isinstance(text, str) for text in texts):
            raise TypeError
    except (ValueError, KeyError, TypeError):
        # The answer of a proxy that cannot reach the server now, or does not wait for its answer.
        if status in (408, 429, 502, 503, 504):
            return errors.NoAnswer(server.url, f"{status} from a proxy in front of the server", maybe_sent=True)
        text = answer.body[: 4 * SHOWN_CHARS].decode(errors="replace")
        shown = "".join(char for char in text if char.isprintable())[:SHOWN_CHARS]
        return errors.Foreign(server.url, status, f"`{shown}`")
    kind: type[errors.TurnwiseError] = errors.Refused
    if status in (408, 429, 503) or texts[0] == "superseded":
        kind = errors.Unavailable
    elif texts[0] in ("expired_worker", "unknown_worker"):
        kind = errors.Expired
    elif texts[0] == "halt":
        kind = errors.Halted
    elif texts[0] == "not_found":
        kind = errors.NotFound
    error = kind(*texts, status=status)
    error.answer = body.get("answer")
    return error
