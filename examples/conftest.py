"""The programs of an example, each a process of its own, in the example's folder."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

PROGRAMS = pathlib.Path(sys.executable).parent


def eventually(condition, seconds=30.0):
    """The value of a condition as soon as it is true."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.05)
    return value


class Processes:
    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.all: list[subprocess.Popen[bytes]] = []

    def start(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Starts a program of Python's environment. What it prints is shown if the test fails."""
        process = subprocess.Popen([str(PROGRAMS / program), *arguments], cwd=self.folder, env=os.environ)
        self.all.append(process)
        return process

    def free_port(self) -> int:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            return free.getsockname()[1]

    def until_listening(self, port: int) -> None:
        def listens() -> bool:
            assert all(process.poll() is None for process in self.all), "a program has ended"
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        eventually(listens)

    def end(self) -> None:
        for process in self.all:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()


@pytest.fixture
def processes(request: pytest.FixtureRequest, turnwise_server) -> Iterator[Processes]:
    """The processes of a test, which find the server in `TURNWISE_SERVER`."""
    started = Processes(request.path.parent)
    yield started
    started.end()
