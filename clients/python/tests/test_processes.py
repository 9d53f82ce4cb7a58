"""`turnwise-worker --processes` and `--reload`: who is replaced, who gets signals, and that nobody is left behind."""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from conftest import Server, eventually
from test_faults import ended_once

import jobs
from turnwise_client import Client

# How many processes the test of kills kills.
KILLS = int(os.environ.get("TURNWISE_TEST_KILLS", "20"))


@pytest.fixture(autouse=True)
def connected(server: Server, client: Client) -> Iterator[None]:
    jobs.app.connect(server.url)
    yield
    jobs.app.close()


def workers(server: Server) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = httpx2.get(f"{server.url}/v1/workers", params={"type": "test"}).json()["workers"]
    return found


def started(server: Server, count: int) -> set[int]:
    """The processes of workers as soon as there are so many, and all of them work."""
    eventually(lambda: len(workers(server)) == count and len(server.below()) == count, what=f"{count} workers")
    return server.below()


def test_each_process_is_a_worker_and_a_dead_one_is_replaced(server: Server) -> None:
    parent = server.worker("--processes", "3", "--slots", "1")
    pids = started(server, 3)
    handles = [jobs.pid.add(600) for _ in range(3)]
    eventually(lambda: {int(note.split()[2]) for note in server.notes()} == pids, what="each process has a job")
    for handle in handles:
        handle.cancel()
    victim = pids.pop()
    os.kill(victim, signal.SIGKILL)
    eventually(lambda: victim not in server.below() and len(server.below()) == 3)
    assert pids < started(server, 3)
    assert f"the process {victim} ended with -9; another one in 0.5 s" in server.worker_log(0)
    running = [jobs.sleep_async.add(1.0), jobs.sleep.add(1.0), jobs.deaf.add(1.0)]
    eventually(lambda: all(f"start {handle.id}" in server.notes() for handle in running))
    parent.terminate()
    assert parent.wait(60) == 0
    assert server.below() == set()
    # The server removes the one that was killed when it has been silent for a while.
    eventually(lambda: workers(server) == [])
    assert [handle.job()["state"] for handle in running] == ["completed"] * 3


def test_no_process_outlives_its_parent(server: Server) -> None:
    """One of them has a loop that hangs."""
    parent = server.worker("--processes", "3")
    started(server, 3)
    jobs.block_once.add(60)
    eventually(lambda: server.notes())
    parent.kill()
    parent.wait()
    eventually(lambda: server.below() == set(), what="the processes end")


def test_signals_are_passed_on_once_and_a_second_one_ends_all_at_once(server: Server) -> None:
    """A terminal and a service manager send the processes a signal, too."""
    parent = server.worker("--processes", "2", "--slots", "1")
    pids = started(server, 2)
    handles = [jobs.sleep_async.add(3.0), jobs.sleep_async.add(3.0)]
    eventually(lambda: len(server.notes()) == 2)
    for pid in [parent.pid, *pids]:
        os.kill(pid, signal.SIGINT)
    assert parent.wait(60) == 0
    assert [handle.job()["state"] for handle in handles] == ["completed"] * 2
    parent = server.worker("--processes", "2", "--slots", "1")
    started(server, 2)
    long = jobs.sleep_async.add(600)
    eventually(lambda: f"start {long.id}" in server.notes())
    parent.terminate()
    with pytest.raises(subprocess.TimeoutExpired):
        parent.wait(1)
    parent.terminate()
    assert parent.wait(60) == 128 + signal.SIGTERM
    assert server.below() == set()


def test_a_process_that_fails_again_and_again_is_replaced_after_longer_pauses(server: Server, tmp_path: pathlib.Path) -> None:
    (tmp_path / "broken.py").write_text("1 / 0")
    parent = server.worker("--processes", "1", app="broken", folder=tmp_path)
    eventually(lambda: "another one in 1 s" in server.worker_log(0))
    assert "ended with 1; another one in 0.5 s" in server.worker_log(0)
    parent.terminate()
    assert parent.wait(60) == 0
    assert server.worker("--processes", "2", app="conftest").wait(60) == 2
    assert "has 0 apps" in server.worker_log(1)


def test_a_drained_process_is_not_replaced(server: Server) -> None:
    parent = server.worker("--processes", "2")
    started(server, 2)
    for found in workers(server):
        assert httpx2.put(f"{server.url}/v1/workers/test/{found['id']}", json={"mode": "drain"}).is_success
    assert parent.wait(60) == 0
    assert "another one" not in server.worker_log(0)


APP = """
import time
from turnwise_client import App

app = App("test")

@app.task()
def slow() -> str:
    time.sleep(1.5)
    return VERSION

@app.task()
def version() -> str:
    return VERSION

VERSION = "{}"
"""


def test_a_changed_file_restarts_the_processes_after_their_jobs(server: Server, client: Client, tmp_path: pathlib.Path) -> None:
    module = tmp_path / "changing.py"
    module.write_text(APP.format("one"))
    parent = server.worker("--reload", "--processes", "2", app="changing", folder=tmp_path)
    before = started(server, 2)
    slow = client.add("test", {}, task="slow")
    eventually(lambda: slow.status() == "running")
    module.write_text("it is no Python")
    assert slow.result(60) == "one"
    eventually(lambda: server.worker_log(0).count("SyntaxError") >= 2)
    module.write_text(APP.format("two"))
    assert client.add("test", {}, task="version").result(60) == "two"
    assert not before & started(server, 2)
    assert slow.job()["attempts"] == 1
    parent.terminate()
    assert parent.wait(60) == 0


def test_killed_processes_and_parents_lose_nothing_and_leave_nothing(server: Server) -> None:
    """At random moments a process is killed, or its parent, also while they start."""
    handles = jobs.pid.using(on_lost="requeue").add_many({"seconds": 0.1} for _ in range(200))
    parent = server.worker("--processes", "3", "--slots", "4")
    kills = 0
    while kills < KILLS:
        time.sleep(random.uniform(0, 1))
        below = server.below()
        handles += jobs.pid.using(on_lost="requeue").add_many({"seconds": 0.1} for _ in range(10))
        if random.random() < 0.2:
            kills += 1 + len(below)
            parent.kill()
            parent.wait()
            eventually(lambda: not below & server.below(), what="the processes end with their parent")
            parent = server.worker("--processes", "3", "--slots", "4")
        elif below:
            kills += 1
            with contextlib.suppress(ProcessLookupError):
                os.kill(random.choice(sorted(below)), signal.SIGKILL)
    for handle in handles:
        handle.result(120)
    assert all(ended_once(handle.job()) for handle in handles)
    parent.terminate()
    assert parent.wait(60) == 0
    assert server.below() == set()
