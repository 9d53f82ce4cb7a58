"""A proxy between a client and the server. It has faults, and keeps what passes.

A request has names, by which faults and expectations select it: `accept`, `end`, `ping`, `leave`, `update`, `locks` and `register` of workers;
`add`, `job`, `remove`, `wait`, `result`, `cancel`, `retry`, `logs`, `events` of clients; and `ends` if it has ends of runs."""

from __future__ import annotations

import http.client
import json
import select
import socket
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

LONGEST_ANSWER_S = 120
# Those of a connection. And answers are kept as they are: not compressed.
DROPPED_HEADERS = ("host", "connection", "accept-encoding")
END_KINDS = ("finish", "fail", "snooze", "release")
FAULTS = ("lose_request", "hang_request", "lose_answer", "hang_answer", "late", "late_answer", "answer", "cut")


@dataclass
class Fault:
    """What happens to requests, instead of being passed on and answered."""

    kind: str
    on: str | None = None
    has: str = ""
    by: str | None = None
    # Requests with fewer ends are spared.
    ends: int = 0
    # It spares the first `skip` requests, and happens to the `times` ones behind them.
    skip: int = 0
    times: int = 1_000_000
    seconds: float = 0.0
    status: int = 503
    body: str = ""
    # A stream is cut after this many events.
    events: int = 1

    def meets(self, seen: Seen) -> bool:
        """Whether it happens to this request, which counts."""
        if not seen.matches(self.on, self.has, self.by) or len(seen.ends) < self.ends:
            return False
        self.skip -= 1
        if self.skip >= 0:
            return False
        self.times -= 1
        return self.times >= 0


@dataclass
class Seen:
    """A request."""

    method: str
    path: str
    body: str
    # The name of the worker that has sent it.
    by: str | None
    at: float = field(default_factory=time.monotonic)
    fault: str | None = None
    # The server's answer, also if it was lost.
    status: int | None = None
    answer: Any = None

    def __post_init__(self) -> None:
        try:
            self.json: Any = json.loads(self.body) if self.body else None
        except ValueError:
            self.json = None
        self.parts = self.path.partition("?")[0].strip("/").split("/")[1:]
        self.ends = list(self._ends())
        self.names = {self._name(), *(["ends"] if self.ends else [])}

    def _name(self) -> str:
        root, depth = self.parts[0], len(self.parts)
        if root == "workers":
            return "register" if depth == 2 else self.parts[-1]
        if root == "jobs" and self.method == "POST" and depth <= 2:
            return "add"
        if root == "jobs" and depth == 3:
            return "remove" if self.method == "DELETE" else "job"
        return self.parts[-1]

    def _ends(self) -> Any:
        """The ends of runs in it: (kind, entry)."""
        if self.parts[0] != "workers" or not isinstance(self.json, dict):
            return
        ends = self.json.get("ends") or {} if self.parts[-1] == "accept" else self.json if self.parts[-1] == "end" else {}
        for kind in END_KINDS:
            for entry in ends.get(kind) or []:
                yield kind, entry

    def __str__(self) -> str:
        fault = f" [{self.fault}]" if self.fault else ""
        return f"{self.at:.3f} {self.by or '-'} {self.method} {self.path}{fault} {self.body[:500]} -> {self.status} {str(self.answer)[:500]}"

    def matches(self, on: str | None, has: str, by: str | None) -> bool:
        return (on is None or on in self.names) and has in self.body and (by is None or by == self.by)


class Proxy:
    """A proxy to the server at this port."""

    def __init__(self, port: int, changed: threading.Condition) -> None:
        self.port = port
        # Notified of each request and each answer.
        self.changed = changed
        self.seen: list[Seen] = []
        self.faults: dict[str, Fault] = {}
        self.workers: dict[str, str] = {}
        proxy = self

        class Handler(_Handler):
            owner = proxy

        class Listener(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, request: Any, client_address: Any) -> None:
                """Connections that break are what this proxy is for."""

        self.listener = Listener(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.listener.server_address[1]}"
        threading.Thread(target=self.listener.serve_forever, args=(0.1,), daemon=True).start()

    def close(self) -> None:
        self.listener.shutdown()
        self.listener.server_close()

    def begin(self, method: str, path: str, body: str) -> tuple[Seen, Fault | None]:
        seen = Seen(method, path, body, None)
        with self.changed:
            if seen.parts[0] == "workers":
                seen.by = seen.json.get("name") if "register" in seen.names and seen.json else self.workers.get(seen.parts[2])
            fault = next((fault for fault in self.faults.values() if fault.meets(seen)), None)
            seen.fault = fault.kind if fault else None
            self.seen.append(seen)
            self.changed.notify_all()
        return seen, fault

    def answered(self, seen: Seen, status: int, body: bytes) -> None:
        with self.changed:
            seen.status = status
            try:
                seen.answer = json.loads(body)
            except ValueError:
                seen.answer = None
            if "register" in seen.names and status < 300:
                self.workers[seen.answer["worker"]] = seen.by or ""
            self.changed.notify_all()


class _Handler(BaseHTTPRequestHandler):
    """A connection of a client."""

    owner: Proxy
    protocol_version = "HTTP/1.1"
    # Heads and bodies are written apart.
    wbufsize = 1 << 16
    disable_nagle_algorithm = True

    def log_message(self, *_: Any) -> None:
        """What matters is in `Proxy.seen`."""

    def do(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        seen, fault = self.owner.begin(self.command, self.path, body.decode(errors="replace"))
        kind = fault.kind if fault else None
        if kind == "lose_request":
            return self.lose()
        if kind == "hang_request":
            return self.hang()
        if fault and kind == "late":
            time.sleep(fault.seconds)
        if fault and kind == "answer":
            self.owner.answered(seen, fault.status, fault.body.encode())
            return self.answer(fault.status, {"content-type": "application/json"}, fault.body.encode())
        far = http.client.HTTPConnection("127.0.0.1", self.owner.port, timeout=LONGEST_ANSWER_S)
        try:
            self.forward(far, body, seen, fault)
        except (OSError, http.client.HTTPException):
            # The server is gone, and so is the connection to the client.
            self.lose()
        finally:
            far.close()

    do_GET = do_POST = do_PUT = do_DELETE = do

    def forward(self, far: http.client.HTTPConnection, body: bytes, seen: Seen, fault: Fault | None) -> None:
        headers = {name: value for name, value in self.headers.items() if name.lower() not in DROPPED_HEADERS}
        far.request(self.command, self.path, body or None, headers)
        # A client that hangs up ends its request at the server, too.
        if self.connection in select.select([far.sock, self.connection], [], [])[0]:
            return self.lose()
        response = far.getresponse()
        given = {name: value for name, value in response.getheaders() if name.lower() in ("content-type", "retry-after")}
        if (response.getheader("content-type") or "").startswith("text/event-stream"):
            return self.stream(response, given, seen, fault)
        answer = response.read()
        self.owner.answered(seen, response.status, answer)
        if fault and fault.kind == "lose_answer":
            return self.lose()
        if fault and fault.kind == "hang_answer":
            return self.hang()
        if fault and fault.kind == "late_answer":
            time.sleep(fault.seconds)
        self.answer(response.status, given, answer)

    def answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response_only(status)
        for name, value in {**headers, "content-length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def stream(self, response: http.client.HTTPResponse, headers: dict[str, str], seen: Seen, fault: Fault | None) -> None:
        """Passes on what comes, as it comes, until the end or the cut."""
        self.owner.answered(seen, response.status, b"")
        self.send_response_only(response.status)
        for name, value in {**headers, "connection": "close"}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.flush()
        events = 0
        while line := response.readline():
            self.wfile.write(line)
            self.wfile.flush()
            events += line == b"\n"
            if fault and fault.kind == "cut" and events >= fault.events:
                break
        self.lose()

    def hang(self) -> None:
        """No answer, until the client hangs up."""
        select.select([self.connection], [], [])
        self.lose()

    def lose(self) -> None:
        """No answer."""
        self.close_connection = True
        try:
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
