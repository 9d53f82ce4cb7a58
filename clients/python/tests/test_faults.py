"""What a worker and a client do when something breaks: a blocked loop, killed processes, a server that restarts, lost answers."""

from __future__ import annotations

import asyncio
import logging
import os
import pathlib
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from conftest import Server, eventually

import jobs
from turnwise_client import AsyncClient, AsyncHandle, Client, NoAnswer, Refused, TurnwiseError, Worker
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


def test_heartbeats_go_on_while_the_loop_hangs_for_a_while(make_server: Callable[..., Server]) -> None:
    """The health timeout is 3 s. Heartbeats of the loop would stop at once, and the server would remove the worker after that time."""
    server = make_server("[workers]\nhealth_interval = 0.5\nhealth_timeout = 3\n")
    jobs.app.connect(server.url)
    worker = server.worker()
    handle = jobs.block_once.add(4.2)
    assert int(handle.result(20)) == worker.pid
    assert len(starts(server, handle.id)) == 1
    assert "registering again" not in server.worker_log(0)


def test_plain_functions_do_not_hinder_the_loop(server: Server) -> None:
    server.worker("--slots", "4")
    slow = [jobs.deaf.add(5) for _ in range(3)]
    eventually(lambda: len(server.notes()) == 3)
    assert jobs.add_async.add(1).result(3) == 2
    assert [handle.result(20) for handle in slow] == ["slept"] * 3
    assert all(handle.job()["attempts"] == 1 for handle in slow)


def test_the_jobs_of_a_killed_worker_run_elsewhere_and_end_once(server: Server) -> None:
    first = server.worker("--slots", "8")
    handles = [jobs.pid.add(1.0) for _ in range(16)]
    eventually(lambda: len(server.notes()) >= 8)
    first.send_signal(signal.SIGKILL)
    second = server.worker("--slots", "8")
    assert {int(handle.result(40)) for handle in handles} <= {first.pid, second.pid}
    assert all(ended_once(handle.job()) for handle in handles)
    assert int(handles[-1].job()["result"]) == second.pid


def test_a_running_job_is_not_started_again_by_what_its_worker_receives_later(server: Server) -> None:
    server.worker("--slots", "4")
    long = jobs.sleep_async.add(2.0)
    eventually(lambda: server.notes())
    for n in range(5):
        assert jobs.add.add(n).result(10) == n + 1
    assert long.result(10) == "slept"
    assert server.notes() == [f"start {long.id}", f"end {long.id}"]


def test_a_worker_that_was_removed_stops_its_jobs_and_works_again(server: Server) -> None:
    """All its slots are taken, so that it requests no jobs. It learns of its removal from heartbeats."""
    first = server.worker("--slots", "1")
    handle = jobs.sleep_async.using(on_lost="requeue").add(6)
    eventually(lambda: server.notes())
    first.send_signal(signal.SIGSTOP)
    eventually(lambda: handle.status() == "pending", what="the server takes the job back")
    first.send_signal(signal.SIGCONT)
    eventually(lambda: f"cancelled {handle.id}" in server.notes(), what="the lost run stops")
    assert handle.result(20) == "slept"
    assert [note.split()[0] for note in server.notes()] == ["start", "cancelled", "start", "end"]


def test_workers_that_are_killed_again_and_again_lose_nothing(server: Server) -> None:
    handles = jobs.pid.using(on_lost="requeue").add_many({"seconds": 0.05} for _ in range(300))
    for _ in range(5):
        worker = server.worker("--slots", "4")
        eventually(lambda: "registered as" in server.worker_log(len(server.processes) - 1))
        time.sleep(0.5)
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    server.worker("--slots", "16")
    for handle in handles:
        assert handle.wait(40)["state"] == "completed"
    assert all(ended_once(handle.job()) for handle in handles)


def test_a_server_that_restarts_is_waited_for(server: Server) -> None:
    server.worker("--slots", "4")
    running = jobs.sleep_async.add(2.0)
    plain = jobs.sleep.add(2.0)
    eventually(lambda: len(server.notes()) == 2)
    waited: list[str] = []
    waiting = threading.Thread(target=lambda: waited.append(running.result(40)))
    waiting.start()
    server.kill()
    time.sleep(0.5)
    server.start()
    waiting.join(40)
    assert waited == ["slept"] and plain.result(30) == "slept"
    assert ended_once(running.job()) and running.job()["attempts"] == 1
    assert jobs.add.add(1).result(20) == 2


def test_ends_are_sent_again_until_the_server_has_answered(server: Server) -> None:
    """The runs end while there is no server."""
    server.worker("--slots", "4")
    handles = [jobs.deaf.add(1.0), jobs.deaf.add(1.2)]
    eventually(lambda: len(server.notes()) == 2)
    server.kill()
    eventually(lambda: len(server.notes()) == 4)
    server.start()
    assert [handle.result(30) for handle in handles] == ["slept"] * 2
    assert [handle.job()["attempts"] for handle in handles] == [1, 1]
    assert len(server.notes()) == 4


def test_a_cancelled_job_stops_and_its_function_learns_it(server: Server) -> None:
    server.worker("--slots", "4")
    on_loop, in_thread, waiting = jobs.sleep_async.add(60), jobs.sleep.add(60), jobs.add.using(delay=3600).add(1)
    eventually(lambda: len(server.notes()) == 2)
    assert waiting.cancel() == "cancelled"
    assert (on_loop.cancel(), in_thread.cancel()) == ("running", "running")
    assert on_loop.wait(10)["state"] == "cancelled" and in_thread.wait(10)["state"] == "cancelled"
    assert f"cancelled {on_loop.id}" in server.notes()
    assert not any(note.startswith("end") for note in server.notes())


def test_a_function_that_completes_although_it_is_cancelled_has_a_result(server: Server) -> None:
    server.worker()
    handle = jobs.deaf.add(1.5)
    eventually(lambda: server.notes())
    assert handle.cancel() == "running"
    assert handle.result(10) == "slept"


def test_sigterm_lets_jobs_end_and_gives_the_rest_back_without_an_attempt(server: Server) -> None:
    worker = server.worker("--slots", "4", "--grace", "1.5")
    short = jobs.sleep_async.add(1.0)
    long = [jobs.sleep_async.add(60), jobs.sleep.add(60), jobs.deaf.add(60)]
    eventually(lambda: len(server.notes()) == 4)
    worker.send_signal(signal.SIGTERM)
    later = jobs.add.add(1)
    started = time.monotonic()
    assert worker.wait(15) == 0
    assert 1.4 < time.monotonic() - started < 6
    assert short.status() == "completed"
    for handle in long:
        job = handle.job()
        assert (job["state"], job["attempts"]) == ("pending", 0), job
        assert handle.cancel() == "cancelled"
    assert later.status() == "pending"
    assert f"cancelled {long[0].id}" in server.notes()
    server.worker()
    assert later.result(20) == 2


def test_an_idle_worker_ends_at_once_and_leaves(server: Server, client: Client) -> None:
    worker = server.worker()
    eventually(lambda: "registered as" in server.worker_log(0))
    worker.send_signal(signal.SIGINT)
    assert worker.wait(5) == 0
    assert "left" in server.worker_log(0)


def test_a_second_signal_ends_the_process_at_once(server: Server) -> None:
    worker = server.worker("--grace", "60")
    handle = jobs.sleep_async.add(60)
    eventually(lambda: server.notes())
    worker.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        worker.wait(1)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(2) == 128 + signal.SIGTERM
    eventually(lambda: handle.status() in ("crashing", "pending"), what="the server takes the job back")


def test_signals_reach_a_worker_whose_loop_hangs(server: Server) -> None:
    worker = server.worker("--grace", "0.5")
    jobs.block_once.add(60)
    eventually(lambda: server.notes())
    worker.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(2) == 128 + signal.SIGTERM


def test_an_operator_drains_a_worker(server: Server, client: Client) -> None:
    import httpx2

    worker = server.worker()
    handle = jobs.sleep_async.add(1.5)
    eventually(lambda: server.notes())
    found = httpx2.get(f"{server.url}/v1/workers", params={"type": "test"}).json()["workers"]
    drained = httpx2.put(f"{server.url}/v1/workers/test/{found[0]['id']}", json={"mode": "drain"})
    assert drained.status_code == 200
    later = jobs.add.add(1)
    assert worker.wait(15) == 0
    assert handle.status() == "completed" and later.status() == "pending"


def test_a_token_is_required_used_and_never_shown(server: Server) -> None:
    import httpx2

    def token(*scopes: str) -> str:
        body = {"scopes": list(scopes)}
        headers = {"authorization": f"Bearer {admin}"} if admin else {}
        answer = httpx2.post(f"{server.url}/v1/tokens", json=body, headers=headers)
        assert answer.status_code == 201, answer.text
        text = answer.json()["token"]
        assert isinstance(text, str)
        return text

    admin = ""
    admin = token("admin")
    work, add = token("worker:test", "client:*"), token("client:*")
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


def test_an_add_whose_answer_is_lost_adds_the_job_once(server: Server, client: Client) -> None:
    gateway = Gateway(server.port, lose=2)
    with gateway.listener, Client(gateway.url) as through:
        added = through.add("elsewhere", {"n": 1})
        assert added.added == "queued" and gateway.answers == 3
        later = through.add("elsewhere", {"n": 2}, delay=60)
        assert later.added == "delayed"
        gateway.lose = 1
        assert later.remove()
        gateway.lose = 1
        again = through.add("elsewhere", {"n": 1}, id=added.id)
        assert again.added == "exists"
        gateway.lose, before = 1, gateway.answers
        with pytest.raises(NoAnswer):
            # This could run the job twice.
            through.add("elsewhere", {}, id=added.id, if_exists="again")
        assert gateway.answers == before + 1
    assert len(list(client.jobs(type="elsewhere"))) == 1


def test_a_worker_behind_a_gateway_that_loses_answers_ends_each_job_once(server: Server) -> None:
    gateway = Gateway(server.port, lose=0)

    async def run() -> None:
        worker = Worker(jobs.app, slots=4, tasks=["add", "add_async"], url=gateway.url)
        working = asyncio.create_task(worker.run())
        handles = await jobs.add.add_many_async({"a": n} for n in range(40))
        handles += await jobs.add_async.add_many_async({"a": n} for n in range(40))
        while not all([await handle.status() == "completed" for handle in handles]):
            gateway.lose = 1
            await asyncio.sleep(0.1)
        gateway.lose = 0
        assert sorted([await handle.result() for handle in handles]) == sorted([*range(1, 41)] * 2)
        for handle in handles:
            job = await handle.job()
            assert ended_once(job) and job["attempts"] == 1
        worker.stop()
        await working
        await jobs.app.async_client.close()

    with gateway.listener:
        asyncio.run(asyncio.wait_for(run(), 60))


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
