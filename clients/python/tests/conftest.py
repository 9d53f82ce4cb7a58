"""A real server for each test that wants one, and workers in processes of their own."""

from __future__ import annotations

import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest

from turnwise_client import Client

HERE = pathlib.Path(__file__).parent


def eventually(condition: Callable[[], Any], seconds: float = 60.0, what: str = "") -> Any:
    """The value of a condition as soon as it is true."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"not within {seconds} s: {what or condition}"
        time.sleep(0.05)


class Server:
    """A server, its folder, and the processes of its workers."""

    def __init__(self, folder: pathlib.Path, config: str = "") -> None:
        self.binary = os.environ.get("TURNWISE_BIN", "turnwise")
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.config = folder / "turnwise.ini"
        self.config.write_text(config)
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        store, listen = f"embedded:{self.folder / 'store'}", f"127.0.0.1:{self.port}"
        command = [self.binary, "serve", "--listen", listen, "--store", store, "--config", str(self.config), "--log", "warn"]
        with (self.folder / "server.log").open("ab") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output)
        eventually(self.listens, what="the server listens")

    def listens(self) -> bool:
        assert self.process is not None and self.process.poll() is None, (self.folder / "server.log").read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def token(self, *scopes: str, by: str = "") -> str:
        """Adds a token. The first one must be an administrator's, and adds the others."""
        headers = {"authorization": f"Bearer {by}"} if by else {}
        answer = httpx2.post(f"{self.url}/v1/tokens", json={"scopes": list(scopes)}, headers=headers)
        assert answer.status_code == 201, answer.text
        text = answer.json()["token"]
        assert isinstance(text, str)
        return text

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def worker(
        self, *arguments: str, token: str | None = None, app: str = "jobs", folder: pathlib.Path = HERE
    ) -> subprocess.Popen[bytes]:
        """A worker process of `tests/jobs.py`, or of an app in another folder."""
        environment = {**os.environ, "TURNWISE_SERVER": self.url, "TURNWISE_TEST_FOLDER": str(self.folder)}
        environment.pop("TURNWISE_TOKEN", None)
        if token is not None:
            environment["TURNWISE_TOKEN"] = token
        command = [str(pathlib.Path(sys.executable).parent / "turnwise-worker"), app, *arguments]
        with (self.folder / f"worker{len(self.processes)}.log").open("wb") as output:
            process = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=output)
        self.processes.append(process)
        return process

    def below(self) -> set[int]:
        """The processes that the processes of workers have started."""
        mark = f"TURNWISE_TEST_FOLDER={self.folder}\0".encode()
        found = set()
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if mark in (process / "environ").read_bytes() and b"--parent-pipe" in (process / "cmdline").read_bytes():
                    found.add(int(process.name))
            except OSError:
                # It has ended.
                pass
        return found

    def relay(self, outbox: str) -> subprocess.Popen[bytes]:
        """A process that passes on the jobs of an outbox."""
        environment = {**os.environ, "TURNWISE_SERVER": self.url}
        command = [str(pathlib.Path(sys.executable).parent / "turnwise-worker"), "--outbox", outbox]
        with (self.folder / "relay.log").open("ab") as output:
            process = subprocess.Popen(command, cwd=HERE, env=environment, stdout=output, stderr=output)
        self.processes.append(process)
        return process

    def worker_log(self, number: int) -> str:
        return (self.folder / f"worker{number}.log").read_text()

    def notes(self) -> list[str]:
        """What the tasks of `tests/jobs.py` have noted."""
        file = self.folder / "notes"
        return file.read_text().split("\n")[:-1] if file.exists() else []

    def end(self) -> None:
        for process in [*self.processes, self.process]:
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()
        for left in self.below():
            os.kill(left, signal.SIGKILL)


# A worker is removed after 2 s without a heartbeat.
FAST = "[workers]\nhealth_interval = 0.5\nhealth_timeout = 2\n"


@pytest.fixture
def make_server(tmp_path: pathlib.Path) -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def make(config: str = FAST) -> Server:
        folder = tmp_path / f"server{len(servers)}"
        folder.mkdir()
        server = Server(folder, config)
        servers.append(server)
        return server

    yield make
    for server in servers:
        server.end()


@pytest.fixture
def server(make_server: Callable[..., Server]) -> Server:
    return make_server()


@pytest.fixture
def client(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setenv("TURNWISE_SERVER", server.url)
    monkeypatch.delenv("TURNWISE_TOKEN", raising=False)
    with Client() as client:
        yield client
