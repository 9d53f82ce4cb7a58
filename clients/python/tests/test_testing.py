"""The server for the tests of other programs: its clock, `drain` and `assert_added`, as such a test uses them."""

from __future__ import annotations

import asyncio
import contextvars
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import eventually

from turnwise_client import App, Client, Context, JobFailed, NotFound, Snooze, Worker
from turnwise_client.testing import Server, server

app = App("shop")
seen: list[Any] = []
of_test: contextvars.ContextVar[str] = contextvars.ContextVar("of_test", default="")


@app.task()
def send(to: str, copies: int = 1) -> str:
    seen.append((to, threading.get_ident(), of_test.get()))
    of_test.set("the job's")
    return f"{copies} sent to {to}"


@app.task()
async def order(number: int) -> int:
    loop = asyncio.get_running_loop()
    seen.append(loop)
    await send.add_async(f"{number}@example.org")
    await app.async_client.close()
    return number


@app.task(max_attempts=3, backoff=[60, 3600], jitter=False)
def crash(context: Context) -> int:
    if context.attempt < 3:
        raise ValueError(f"attempt {context.attempt}")
    return context.attempt


@app.task(max_attempts=1)
def big() -> str:
    return "x" * 14_000_000


@app.task()
def again() -> None:
    raise Snooze(0)


@app.task(schedule="0 * * * *")
def hourly() -> None:
    seen.append("hourly")


@app.task(timeout=3600, max_attempts=1)
def slow() -> str:
    seen.append("started")
    assert go_on.wait(60)
    return "done"


go_on = threading.Event()


@pytest.fixture
def turnwise_apps() -> list[App]:
    return [app]


@pytest.fixture(autouse=True)
def nothing_seen() -> Iterator[None]:
    seen.clear()
    go_on.clear()
    yield
    go_on.set()


def test_drain_runs_all_that_can_run_in_this_thread(turnwise_server: Server) -> None:
    of_test.set("the test's")
    first = send.add("a@example.org", copies=2)
    last = send.using(after=[first]).add("b@example.org")
    later = send.using(delay=60).add("c@example.org")
    ran = turnwise_server.drain()
    assert [(job["id"], job["state"]) for job in ran] == [(first.id, "completed"), (last.id, "completed")]
    assert first.result() == "2 sent to a@example.org"
    assert seen == [("a@example.org", threading.get_ident(), "the test's"), ("b@example.org", threading.get_ident(), "the test's")]
    assert of_test.get() == "the test's" and later.status() == "delayed"
    assert turnwise_server.drain() == []


def test_coroutines_run_and_add_jobs_which_run_too(turnwise_server: Server) -> None:
    order.add(5)
    assert [job.get("task") for job in turnwise_server.drain()] == ["order", "send"]

    async def within_a_loop() -> None:
        seen.clear()
        order.add(6)
        ran = await turnwise_server.drain_async()
        assert [job["state"] for job in ran] == ["completed", "completed"] and seen[0] is asyncio.get_running_loop()

    asyncio.run(within_a_loop())


def test_delays_and_backoffs_are_over_when_the_clock_was_moved(turnwise_server: Server) -> None:
    delayed, crashing = send.using(delay=25 * 3600).add("a@example.org"), crash.add()
    assert [job["id"] for job in turnwise_server.drain()] == [crashing.id]
    turnwise_server.advance(seconds=59)
    assert turnwise_server.drain() == []
    turnwise_server.advance(seconds=1)
    assert [job["state"] for job in turnwise_server.drain()] == ["crashing"]
    before = turnwise_server.advance()
    after = turnwise_server.advance(hours=26)
    assert 26 * 3600 <= (after - before).total_seconds() < 27 * 3600
    assert delayed.status() == crashing.status() == "pending"
    turnwise_server.drain()
    assert delayed.status() == "completed" and crashing.result() == 3


def test_a_schedule_fires_at_each_of_its_instants(turnwise_server: Server) -> None:
    assert next(turnwise_server.client.schedules())["name"] == "shop.hourly"
    for _ in range(26):
        turnwise_server.advance(hours=1)
        turnwise_server.drain()
    assert seen == ["hourly"] * 26
    turnwise_server.client.put_schedule("all", "0 * * * *", send.new("a@example.org"), overlap="allow")
    turnwise_server.advance(hours=26)
    assert len(turnwise_server.added(send)) == 26


def test_jobs_that_start_too_late_fail_and_old_records_are_removed(turnwise_server: Server) -> None:
    late = send.using(start_within=60).add("a@example.org")
    turnwise_server.client.add_group("g", on_complete=send.new("done@example.org"))
    send.using(group="g", start_within=60).add("b@example.org")
    turnwise_server.client.close_group("g")
    turnwise_server.advance(minutes=2)
    assert late.status() == "failed" and turnwise_server.drain()
    turnwise_server.assert_added(send, to="done@example.org")
    turnwise_server.advance(days=8)
    with pytest.raises(NotFound):
        late.status()


def test_runs_grow_older_only_where_the_test_says_so(turnwise_server: Server) -> None:
    worker = Worker(app, url=turnwise_server.url, grace=0.1)
    thread = threading.Thread(target=lambda: asyncio.run(worker.run()))
    thread.start()
    patient, late = slow.add(), slow.add()
    eventually(lambda: seen.count("started") == 2)
    turnwise_server.advance(hours=26)
    # Heartbeats and checks go on in real time.
    time.sleep(2)
    assert patient.status() == late.status() == "running"
    go_on.set()
    assert patient.result(20) == late.result(20) == "done"
    go_on.clear()
    lost = slow.add()
    eventually(lambda: seen.count("started") == 3)
    turnwise_server.advance(minutes=59, timeouts=True)
    assert lost.status() == "running"
    turnwise_server.advance(minutes=1, timeouts=True)
    with pytest.raises(JobFailed, match="timeout"):
        lost.result(20)
    go_on.set()
    worker.stop()
    thread.join(30)
    assert not thread.is_alive()


def test_assert_added_finds_jobs_by_what_they_were_added_with(turnwise_server: Server) -> None:
    with pytest.raises(AssertionError, match="no job of send was added with {}"):
        turnwise_server.assert_added(send)
    first, second = send.add("a@example.org"), send.add("a@example.org", copies=2)
    assert turnwise_server.assert_added(send, to="a@example.org")["id"] == second.id
    assert turnwise_server.assert_added(send, copies=2)["id"] == second.id
    assert [job["id"] for job in turnwise_server.added(send)] == [first.id, second.id]
    for payload in ({"to": "b@example.org"}, {"copies": 1}, {"cc": None}):
        with pytest.raises(AssertionError, match="'to': 'a@example.org', 'copies': 2"):
            turnwise_server.assert_added(send, **payload)
    assert turnwise_server.added(order) == []


def test_what_fails_is_in_the_log_of_the_test(turnwise_server: Server, caplog: pytest.LogCaptureFixture) -> None:
    crash.add()
    large = big.add()
    turnwise_server.drain()
    assert "ValueError: attempt 1" in caplog.text and "in crash\n" in caplog.text
    assert large.status() == "failed" and f"big {large.id} has failed" in caplog.text


def test_a_job_that_runs_for_ever_ends_a_drain(turnwise_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnwise_client.testing.MAX_RUNS", 20)
    again.add()
    with pytest.raises(RuntimeError, match="more than 20 runs"):
        turnwise_server.drain()


def test_the_environment_and_the_apps_have_their_server_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNWISE_TOKEN", "secret")
    monkeypatch.delenv("TURNWISE_SERVER", raising=False)
    other = App("other", "http://127.0.0.1:1", "token")
    with server(other) as first, server(app) as second:
        assert (other._url, app._url) == (first.url, second.url) and "TURNWISE_TOKEN" not in os.environ
        with Client() as client:
            assert list(client.jobs()) == []
            client.add("shop", {"to": "a@example.org"}, task="send")
        assert second.assert_added(send) and not list(first.client.jobs())
    assert (other._url, other._token, app._url) == ("http://127.0.0.1:1", "token", None)
    assert os.environ["TURNWISE_TOKEN"] == "secret" and "TURNWISE_SERVER" not in os.environ
    with server() as none, pytest.raises(ValueError, match="no apps"):
        none.drain()


def test_the_server_ends_with_the_test_that_was_killed() -> None:
    code = (
        "import time\n"
        "from turnwise_client.testing import server\n"
        "with server() as turnwise:\n"
        "    [store] = [turnwise.client._transport.run(turnwise._core.read(r)) for r in [R('GET', '/v1/store')]]\n"
        "    print(store['url'], flush=True)\n"
        "    time.sleep(600)\n"
    )
    code = "from turnwise_client._http import Request as R\n" + code
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as test:
        assert test.stdout is not None
        folder = pathlib.Path(test.stdout.readline().strip().removeprefix("embedded:")).parent
        assert folder.is_dir()
        test.send_signal(signal.SIGKILL)
    eventually(lambda: not folder.exists(), what="the server removes its folder")


def test_a_missing_program_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.delenv("TURNWISE_BIN", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="TURNWISE_BIN"), server():
        pass
    old = tmp_path / "turnwise"
    old.write_text("#!/bin/sh\nexit 2\n")
    old.chmod(0o755)
    with pytest.raises(RuntimeError, match="has ended with 2"), server():
        pass
