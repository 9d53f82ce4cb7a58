"""What a worker and a client do when something breaks, as far as it is Python's own. The rest is in `clients/conformance`."""

from __future__ import annotations

import asyncio
import logging
import os
import pathlib
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from conftest import Server, eventually

import jobs
from turnwise_client import (
    AsyncClient,
    AsyncHandle,
    Client,
    NoAnswer,
    Refused,
    TurnwiseError,
    Worker,
    _api,
)
from turnwise_client._http import Answer, Attempt, Core, Pause, Request

# How long the loop of a worker hangs.
BLOCK_S = float(os.environ.get("TURNWISE_TEST_BLOCK_S", "12"))


@pytest.fixture(autouse=True)
def connected(server: Server, client: Client) -> Iterator[None]:
    jobs.app.connect(server.url)
    yield
    jobs.app.close()


def ended_once(job: object) -> bool:
    """Whether the history of a job has one end, a completion."""
    assert isinstance(job, dict)
    ends = [event["type"] for event in job["history"] if event["type"] in ("completed", "failed", "cancelled")]
    return ends == ["completed"]


def starts(server: Server, id: str) -> list[str]:
    """The processes in which a job was started."""
    return [note.split()[2] for note in server.notes() if note.startswith(f"start {id} ")]


def test_a_worker_whose_loop_hangs_loses_its_jobs_to_another_one(make_server: Callable[..., Server]) -> None:
    # With 60 s, these are the settings of a server.
    server = make_server(f"[workers]\nhealth_interval = {BLOCK_S / 12}\nhealth_timeout = {BLOCK_S / 4}\n")
    jobs.app.connect(server.url)
    first = server.worker("--slots", "4")
    handles = [jobs.pid.using(on_lost="requeue").add(BLOCK_S / 2) for _ in range(3)]
    eventually(lambda: len(server.notes()) == 3)
    handles.append(jobs.block_once.using(on_lost="requeue").add(BLOCK_S))
    eventually(lambda: starts(server, handles[-1].id))
    second = server.worker("--slots", "4")
    assert {int(handle.result(BLOCK_S + 20)) for handle in handles} == {second.pid}
    for handle in handles:
        assert starts(server, handle.id) == [str(first.pid), str(second.pid)]
    # The first one comes back, learns that it has lost its claims, and works again under a new id.
    eventually(lambda: "registering again" in server.worker_log(0), BLOCK_S + 20, "the first worker registers again")
    second.send_signal(signal.SIGTERM)
    assert second.wait(20) == 0
    assert int(jobs.pid.add(0).result(20)) == first.pid
    for handle in handles:
        job = handle.job()
        assert ended_once(job) and int(job["result"]) == second.pid
    assert "no heartbeats" in server.worker_log(0)


def test_plain_functions_do_not_hinder_the_loop(server: Server) -> None:
    server.worker("--slots", "4")
    slow = [jobs.deaf.add(5) for _ in range(3)]
    eventually(lambda: len(server.notes()) == 3)
    assert jobs.add_async.add(1).result(3) == 2
    assert [handle.result(20) for handle in slow] == ["slept"] * 3
    assert all(handle.job()["attempts"] == 1 for handle in slow)


def test_signals_reach_a_worker_whose_loop_hangs(server: Server) -> None:
    worker = server.worker("--grace", "0.5")
    jobs.block_once.add(60)
    eventually(lambda: server.notes())
    worker.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(2) == 128 + signal.SIGTERM


def test_a_token_is_required_used_and_never_shown(server: Server) -> None:
    admin = server.token("admin")
    work, add = server.token("worker:test", "client:*", by=admin), server.token("client:*", by=admin)
    with pytest.raises(Refused) as refused, Client(server.url) as nobody:
        nobody.add("test", {"a": 1}, task="add")
    assert refused.value.error == "unauthorized" and refused.value.status == 401
    server.worker(token=work)
    with Client(server.url, add) as client:
        assert client.add("test", {"a": 1}, task="add").result(20) == 2
        assert add not in repr(client) and add not in repr(vars(client._core)["servers"])
        with pytest.raises(TurnwiseError) as error:
            client.add("test", {"a": 1}, task="add", priority=99)
        assert add not in str(error.value) + repr(error.value)
    stranger = server.worker(token=add)
    assert stranger.wait(15) == 1
    assert "forbidden" in server.worker_log(1) and add not in server.worker_log(1)
    assert work not in server.worker_log(0)


def test_passwords_of_urls_are_not_shown() -> None:
    with Client("http://me:secret@127.0.0.1:9", retry_for=0) as client:
        assert "secret" not in repr(client)
        with pytest.raises(NoAnswer) as error:
            client.job("a", "b")
        assert "secret" not in str(error.value) and "127.0.0.1:9" in str(error.value)
    with pytest.raises(ValueError) as wrong:
        Client("ftp://me:secret@host")
    assert "secret" not in str(wrong.value)
    with pytest.raises(ValueError) as wrong:
        Client("http://host", "sec ret\n")
    assert "sec" not in str(wrong.value)


def test_a_client_fails_over_to_the_next_server(server: Server) -> None:
    with Client(["http://127.0.0.1:9", server.url]) as client:
        started = time.monotonic()
        handle = client.add("elsewhere", {})
        assert handle.added == "queued" and time.monotonic() - started < 2
        assert client._core.current == 1


def test_a_wait_that_a_gateway_cuts_makes_the_next_ones_shorter() -> None:
    core = Core("http://host", None, 10)
    error = NoAnswer("http://host", "cut", maybe_sent=True)
    core.learn(20, 15, error)
    assert core.longest_wait == 7.5
    core.learn(7.5, 0.1, error)
    assert core.longest_wait == 7.5
    for _ in range(16):
        core.learn(7.5, 7.5, None)
    assert core.longest_wait == 15


def test_an_add_that_was_repeated_tells_what_became_of_the_first_one() -> None:
    core = Core("http://host", None, 10)
    adding = _api.add(core, _api.adding([("type", {}, {})]))
    assert isinstance(next(adding), Attempt)
    assert isinstance(adding.send(NoAnswer("http://host", "lost", maybe_sent=True)), Pause)
    assert isinstance(adding.send(None), Attempt)
    with pytest.raises(StopIteration) as done:
        adding.send(Answer(200, "application/json", b'{"type":"type","id":"a","added":"exists"}'))
    assert done.value.value["added"] == "queued"


def test_a_worker_goes_on_after_internal_errors_and_a_client_shows_them() -> None:
    body = b'{"error":"internal_server_error","reason":"a bug","hint":"see the log"}'
    failed = Answer(500, "application/json", body)
    request = Request("POST", "/v1/x", body=b"{}")
    worker = Core("http://host", None, float("inf")).call(request)
    assert isinstance(next(worker), Attempt) and isinstance(worker.send(failed), Pause)
    assert isinstance(worker.send(None), Attempt)
    with pytest.raises(StopIteration) as done:
        worker.send(Answer(200, "application/json", b"{}"))
    assert done.value.value[0].status == 200
    client = Core("http://host", None, 10).call(request)
    next(client)
    with pytest.raises(Refused, match="a bug"):
        client.send(failed)


class Gateway:
    """A proxy that loses answers: it forwards each request, and closes the connection in place of the first answers."""

    def __init__(self, port: int, lose: int) -> None:
        self.port, self.lose, self.answers = port, lose, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.forward, args=(near,), daemon=True).start()

    def forward(self, near: socket.socket) -> None:
        far = socket.create_connection(("127.0.0.1", self.port))

        def send() -> None:
            try:
                while piece := near.recv(1 << 20):
                    far.sendall(piece)
            except OSError:
                pass

        threading.Thread(target=send, daemon=True).start()
        try:
            while piece := far.recv(1 << 20):
                self.answers += 1
                if self.lose > 0:
                    self.lose -= 1
                    break
                near.sendall(piece)
        except OSError:
            pass
        for each in (near, far):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            each.close()


def test_adds_at_the_same_time_share_requests_and_each_has_its_own_answer(server: Server, client: Client) -> None:
    gateway = Gateway(server.port, lose=1)

    async def run() -> list[object]:
        async with AsyncClient(gateway.url) as through:
            adds = [through.add("together", {"n": n}, priority=10**6 if n == 7 else 0) for n in range(64)]
            return await asyncio.gather(*adds, through.add("together", {"n": object()}), return_exceptions=True)

    with gateway.listener:
        *added, no_json = asyncio.run(run())
    assert isinstance(added.pop(7), Refused) and isinstance(no_json, TypeError)
    # Those that were refused together were added alone; the answer that was lost hides none.
    assert all(isinstance(each, AsyncHandle) and each.added == "queued" for each in added)
    assert len(list(client.jobs(type="together"))) == 63

    async def valid() -> int:
        async with AsyncClient(gateway.url) as through:
            before = gateway.answers
            handles = await asyncio.gather(*(through.add("valid", {"n": n}) for n in range(150)))
            options = [(await handle.job())["options"]["n"] for handle in handles[::50]]
            assert options == [0, 50, 100]
            return gateway.answers - before - 3

    gateway = Gateway(server.port, lose=1)
    with gateway.listener:
        assert asyncio.run(valid()) == 3


def test_a_tenant_that_may_add_no_more_holds_up_no_other(make_server: Callable[..., Server]) -> None:
    server = make_server("[limits]\nwaiting_jobs = 1\n")
    # Operators have no such limit.
    token = server.token("client:*", by=server.token("admin"))

    async def run() -> None:
        async with AsyncClient(server.url, token, retry_for=30) as client:
            await client.add("site", {}, tenant="full")
            one_more = asyncio.create_task(client.add("site", {}, tenant="full"))
            others = [client.add("site", {}, tenant=f"other{n}") for n in range(4)]
            await asyncio.wait_for(asyncio.gather(*others), 15)
            assert not one_more.done()
            one_more.cancel()

    asyncio.run(run())


def test_a_worker_inside_a_program_stops_when_it_is_asked(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    handlers = list(logging.getLogger().handlers)

    async def run() -> None:
        worker = Worker(jobs.app, slots=2, schedules=False, tasks=["add"])
        working = asyncio.create_task(worker.run())
        async with AsyncClient(server.url) as client:
            assert await (await client.add("test", {"a": 1}, task="add")).result(20) == 2
        worker.stop()
        await asyncio.wait_for(working, 10)

    jobs.app.connect(server.url)
    asyncio.run(run())
    assert logging.getLogger().handlers == handlers


def test_importing_installs_no_signal_handler() -> None:
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_module_without_an_app_is_refused(server: Server, make_server: Callable[..., Server], tmp_path: pathlib.Path) -> None:
    worker = server.worker(app="conftest")
    assert worker.wait(10) == 2
    assert "has 0 apps" in server.worker_log(0)
