"""What a scenario runs in: a server of its own, the proxy before it, and the processes of the drivers."""

from __future__ import annotations

import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any

from proxy import Proxy

TYPE = "suite"
FINAL = ("completed", "failed", "cancelled")
# Waits are for conditions, and this is how long a loaded machine may take.
PATIENCE_S = 60.0
POLL_S = 0.1
# A worker without a heartbeat for 15 s is removed, unless the scenario states less.
HEALTH_TIMEOUT_S = 15
HEALTH_INTERVAL_S = 0.5


class Failed(Exception):
    """A client has not done what it must."""


class Process:
    """A process of a driver. Its lines are events, or answers to calls."""

    def __init__(self, world: World, name: str, command: list[str], environment: dict[str, str], cwd: pathlib.Path) -> None:
        self.world, self.name = world, name
        self.errors = world.folder / f"{name}.log"
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(
                command, cwd=cwd, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
            )
        self.answers: dict[int, dict[str, Any]] = {}
        self.calls = 0
        self.code: int | None = None
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for text in self.process.stdout:
            try:
                line = json.loads(text)
            except ValueError:
                line = {"event": "noise", "text": text.decode(errors="replace")}
            with self.world.changed:
                if "n" in line:
                    self.answers[line["n"]] = line
                else:
                    self.world.events.append({"by": self.name, "at": time.monotonic(), **line})
                self.world.changed.notify_all()
        code = self.process.wait()
        with self.world.changed:
            self.code = code
            self.world.changed.notify_all()

    def call(self, what: str, **given: Any) -> int:
        assert self.process.stdin is not None
        self.calls += 1
        self.process.stdin.write(json.dumps({"n": self.calls, "call": what, **given}).encode() + b"\n")
        self.process.stdin.flush()
        return self.calls

    def send(self, number: signal.Signals) -> None:
        # The command may be a wrapper that does not pass signals on.
        os.killpg(self.process.pid, number)


class World:
    """A server, its proxy, and what talks to it."""

    def __init__(self, folder: pathlib.Path, language: Any, settings: dict[str, Any], plain: bool, patience: float) -> None:
        self.folder, self.language, self.plain, self.patience = folder, language, plain, patience
        self.changed = threading.Condition()
        self.events: list[dict[str, Any]] = []
        self.processes: dict[str, Process] = {}
        self.tokens: dict[str, dict[str, Any]] = {}
        self.admin: str | None = None
        shutil.rmtree(folder, ignore_errors=True)
        self.gates = folder / "gates"
        self.gates.mkdir(parents=True)
        timeout, interval = settings.get("health_timeout", HEALTH_TIMEOUT_S), settings.get("health_interval", HEALTH_INTERVAL_S)
        (folder / "turnwise.ini").write_text(f"[workers]\nhealth_interval = {interval}\nhealth_timeout = {timeout}\n")
        self.port = 0
        self.start_server()
        self.proxy = Proxy(self.port, self.changed)

    # The server.

    def start_server(self) -> None:
        log, before = self.folder / "server.log", 0
        if log.exists():
            before = log.stat().st_size
        binary = os.environ.get("TURNWISE_BIN", "turnwise")
        where = ["--listen", f"127.0.0.1:{self.port}", "--store", f"embedded:{self.folder / 'store'}"]
        with log.open("ab") as output:
            command = [binary, "serve", *where, "--config", str(self.folder / "turnwise.ini"), "--log", "warn"]
            self.server = subprocess.Popen(command, stdout=output, stderr=output)

        def listens() -> bool:
            if self.server.poll() is not None:
                raise RuntimeError(f"the server does not start: {log.read_text()}")
            found = re.search(rb"listens on http://[^:]+:(\d+)", log.read_bytes()[before:])
            self.port = int(found.group(1)) if found else self.port
            return found is not None

        self.until(listens, "the server listens", PATIENCE_S)

    def kill_server(self) -> None:
        self.server.kill()
        self.server.wait()

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Asks the server itself. `None` if it has no such thing."""
        far = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        headers = {"content-type": "application/json", **({"authorization": f"Bearer {self.admin}"} if self.admin else {})}
        try:
            far.request(method, f"/v1/{path}", None if body is None else json.dumps(body), headers)
            response = far.getresponse()
            answer = response.read()
        finally:
            far.close()
        if response.status == 404:
            return None
        if response.status >= 300:
            raise RuntimeError(f"{method} {path}: {response.status} {answer.decode()}")
        return json.loads(answer)

    def job(self, id: str) -> Any:
        return self.ask("GET", f"jobs/{TYPE}/{id}")

    def jobs(self) -> list[Any]:
        """The records of all jobs."""
        found: list[Any] = []
        after = ""
        while True:
            page = self.ask("GET", f"jobs?type={TYPE}&limit=1000{after}")
            found += page["jobs"]
            if page.get("next") is None:
                return found
            after = f"&after={page['next']}"

    def result(self, job: dict[str, Any]) -> Any:
        """A result, also one that is no part of the record."""
        if "result" in job or job["state"] != "completed":
            return job.get("result")
        return self.ask("GET", f"jobs/{TYPE}/{job['id']}/result")

    def token(self, scopes: list[str], **more: Any) -> dict[str, Any]:
        answer = self.ask("POST", "tokens", {"scopes": scopes, **more})
        assert isinstance(answer, dict)
        return answer

    # Processes.

    def environment(self, name: str, token: str | None, clock: str | None, **more: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG", "TMPDIR", "LD_LIBRARY_PATH")}
        of_suite = {"SUITE_NAME": name, "SUITE_GATES": str(self.gates), "TURNWISE_SERVER": self.proxy.url, **more}
        if token is not None:
            of_suite["TURNWISE_TOKEN"] = self.tokens[token]["token"]
        if clock is not None:
            # The file may change meanwhile: then the clock jumps. Timers are not those of the wall clock.
            file = self.folder / f"{name}.clock"
            file.write_text(f"{clock}\n")
            of_suite.update(FAKETIME_TIMESTAMP_FILE=str(file), FAKETIME_NO_CACHE="1", FAKETIME_DONT_FAKE_MONOTONIC="1")
            of_suite["LD_PRELOAD"] = faketime()
        return {**kept, **of_suite}

    def start(self, name: str, command: list[str], environment: dict[str, str], cwd: pathlib.Path) -> Process:
        process = Process(self, name, command, environment, cwd)
        self.processes[name] = process
        return process

    def close(self) -> None:
        for process in self.processes.values():
            try:
                process.send(signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.process.wait()
        self.kill_server()
        self.proxy.close()

    # Waits.

    def until(self, condition: Callable[[], Any], what: str, seconds: float | None = None) -> Any:
        """The value of a condition as soon as it is true."""
        seconds = self.patience if seconds is None else seconds
        end = time.monotonic() + seconds
        while True:
            value = condition()
            if value:
                return value
            if time.monotonic() > end:
                raise Failed(f"not within {seconds:g} s: {what}")
            with self.changed:
                self.changed.wait(POLL_S)


def faketime() -> str:
    """The library that moves the clock of a process."""
    for folder in ("/usr/lib", "/usr/local/lib"):
        for found in sorted(pathlib.Path(folder).glob("**/faketime/libfaketime.so.1")):
            return str(found)
    raise RuntimeError("libfaketime is missing: apt-get install libfaketime")
