"""Jobs that are added in the transaction of a database, and the relay that passes them on."""

from __future__ import annotations

import asyncio
import os
import pathlib
import random
import signal
import socket
import sqlite3
import subprocess
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pymysql
import pymysql.cursors
import pytest
from conftest import Server, eventually

import jobs
from turnwise_client import Client, Refused, _api, outbox, work
from turnwise_client.outbox import Relay

Database = tuple[str, Callable[[], Any]]
# How many transactions the test of kills makes.
TRANSACTIONS = int(os.environ.get("TURNWISE_TEST_TRANSACTIONS", "2000"))


def place(factory: pytest.TempPathFactory, name: str, user: str) -> tuple[pathlib.Path, dict[str, Any], int]:
    """The folder of a database, the user of its processes, and its port."""
    folder = factory.mktemp(name)
    is_root = os.geteuid() == 0
    if is_root:
        subprocess.run(["chown", user, folder], check=True)
        for parent in [*folder.parents][:3]:
            parent.chmod(0o755)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return folder, {"user": user, "group": user} if is_root else {}, free.getsockname()[1]


@pytest.fixture(scope="session")
def postgresql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a PostgreSQL of its own."""
    programs = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin"))
    if not programs:
        assert "CI" not in os.environ, "PostgreSQL is not installed"
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    folder, user, port = place(tmp_path_factory, "postgresql", "postgres")
    data = folder / "data"
    initdb: list[Any] = [programs[-1] / "initdb", "--auth=trust", "--username=turnwise", "--no-sync", "-D", data]
    subprocess.run(initdb, check=True, stdout=subprocess.DEVNULL, cwd="/", **user)
    settings = [f"--port={port}", "--listen-addresses=127.0.0.1", f"--unix-socket-directories={folder}", "--fsync=off"]
    command: list[Any] = [programs[-1] / "postgres", "-D", data, *settings]
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd="/", **user)
    url = f"postgresql://turnwise@127.0.0.1:{port}/postgres"

    def answers() -> bool:
        try:
            psycopg.connect(url).close()
        except psycopg.OperationalError:
            return False
        return True

    eventually(answers, what="PostgreSQL listens")
    yield url
    # It does not wait for clients.
    server.send_signal(signal.SIGINT)
    server.wait()


@pytest.fixture(scope="session")
def mysql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a MariaDB of its own."""
    program = pathlib.Path("/usr/sbin/mariadbd")
    if not program.exists():
        assert "CI" not in os.environ, "MariaDB is not installed"
        pytest.skip("MariaDB is not installed (Debian: apt-get install mariadb-server)")
    folder, user, port = place(tmp_path_factory, "mysql", "mysql")
    folders = [f"--datadir={folder / 'data'}", f"--tmpdir={folder}"]
    install = ["mariadb-install-db", "--no-defaults", "--auth-root-authentication-method=normal", *folders]
    subprocess.run(install, check=True, stdout=subprocess.DEVNULL, cwd="/", **user)
    settings = ["--bind-address=127.0.0.1", f"--port={port}", f"--socket={folder / 'socket'}", "--innodb-lock-wait-timeout=5", "--innodb-flush-log-at-trx-commit=0"]
    command: list[Any] = [program, "--no-defaults", *folders, f"--pid-file={folder / 'pid'}", *settings]
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd="/", **user)

    def answers() -> bool:
        try:
            Mysql(host="127.0.0.1", port=port, user="root", database="test").close()
        except pymysql.OperationalError:
            return False
        return True

    eventually(answers, what="MariaDB listens")
    yield f"mysql://root@127.0.0.1:{port}/test"
    server.kill()
    server.wait()


class Mysql(pymysql.Connection):
    """A connection with the method that those of the other databases have."""

    def execute(self, text: str) -> pymysql.cursors.Cursor:
        cursor = self.cursor()
        cursor.execute(text)
        return cursor


@pytest.fixture(params=["sqlite", "postgresql", "mysql"])
def database(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[Database]:
    """The URL of an empty outbox, and what connects to it until the end of the test."""
    opened: list[Any] = []

    def connect() -> Any:
        if request.param == "sqlite":
            opened.append(sqlite3.connect(file, timeout=30, check_same_thread=False))
        elif request.param == "postgresql":
            opened.append(psycopg.connect(url))
        else:
            parts = urllib.parse.urlsplit(url)
            opened.append(Mysql(host=parts.hostname, port=parts.port or 0, user="root", database="test"))
        return opened[-1]

    file = tmp_path / "app.db"
    url = f"sqlite:///{file}" if request.param == "sqlite" else request.getfixturevalue(request.param)
    connection = connect()
    if request.param == "sqlite":
        connection.execute("PRAGMA journal_mode = WAL")
    else:
        connection.execute("DROP TABLE IF EXISTS turnwise_outbox, orders")
    outbox.create_table(connection)
    outbox.create_table(connection)
    connection.execute("CREATE TABLE orders (id bigint)")
    connection.commit()
    yield url, connect
    for connection in opened:
        connection.close()


@pytest.fixture
def connected(server: Server, client: Client) -> Iterator[None]:
    jobs.app.connect(server.url)
    yield
    jobs.app.close()


@pytest.mark.usefixtures("connected")
def test_a_job_is_there_if_its_transaction_commits(client: Client, database: Database) -> None:
    url, connect = database
    connection = connect()
    handle = jobs.add.add_in(connection, 1, b=2)
    connection.rollback()
    committed = jobs.add.using(tenant="acme", delay=3600).add_in(connection, 3, b=4)
    alone = outbox.add(connection, "mail", {"to": "a"}, id="mail-1")
    connection.commit()
    relay = Relay(url, client)
    stats = relay.stats()
    assert (stats["waiting"], stats["refused"]) == (2, 0) and 0 <= stats["lag"] < 20
    assert relay.step() == 2 and relay.step() == 0
    assert relay.stats() == {"waiting": 0, "lag": 0.0, "refused": 0}
    assert [job["id"] for job in client.jobs(type="test")] == [committed.id] != [handle.id]
    job = committed.job()
    assert (job["state"], job["tenant"], alone) == ("delayed", "acme", "mail-1")
    assert client.job("mail", "mail-1")["state"] == "pending"
    # The delay counts from the transaction on, and not from the relay's request.
    raw = connect()
    late = jobs.add.using(delay=0.001).add_in(raw, 1)
    raw.commit()
    time.sleep(0.01)
    relay.step()
    assert late.status() == "pending"
    relay.close()


def test_a_tenant_without_room_holds_up_no_other(
    make_server: Callable[..., Server], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make_server("[limits]\nwaiting_jobs = 3\n")
    # Operators have no such limit.
    client = Client(server.url, server.token("client:*", by=server.token("admin")))
    url, connect = database
    connection = connect()
    for n in range(9):
        outbox.add(connection, "mail", {"n": n}, tenant="full")
    for n in range(6):
        outbox.add(connection, "mail", {"n": n}, tenant=f"other{n % 3}")
    connection.commit()
    # The rows of the first batch are all of one tenant.
    monkeypatch.setattr(outbox, "FULL_S", 1000.0)
    relay = Relay(url, client, batch=8)
    while relay.step():
        pass
    tenants = sorted(job["tenant"] for job in client.jobs(type="mail"))
    assert tenants == ["full"] * 3 + [f"other{n // 2}" for n in range(6)]
    # What comes later does not wait for it, either.
    outbox.add(connection, "mail", {}, tenant="late")
    connection.commit()
    assert relay.step() == 1 and len(list(client.jobs(type="mail", tenant="late"))) == 1
    assert (relay.stats()["waiting"], relay.stats()["refused"]) == (6, 0)
    relay.close()
    # When there is room, they are added.
    monkeypatch.setattr(outbox, "FULL_S", 0.01)
    relay = Relay(url, client)
    for _ in range(2):
        for job in list(client.jobs(type="mail", tenant="full")):
            client.remove("mail", job["id"])
        relay.step()
        time.sleep(0.02)
    relay.close()
    assert (relay.stats()["waiting"], relay.stats()["refused"]) == (0, 0)
    relay.close()
    client.close()


@pytest.mark.usefixtures("connected")
def test_a_refused_job_holds_up_no_other(client: Client, database: Database) -> None:
    url, connect = database
    connection = connect()
    for n in range(20):
        outbox.add(connection, "mail", {"n": n}, id=f"mail-{n}", group="nothing" if n in (3, 11) else None)  # type: ignore[arg-type]
    connection.execute("INSERT INTO turnwise_outbox (job) VALUES ('no JSON')")
    connection.commit()
    relay = Relay(url, client, batch=50)
    assert relay.step() == 21
    assert len(list(client.jobs(type="mail"))) == 18
    assert relay.stats() == {"waiting": 0, "lag": 0.0, "refused": 3}
    problems = [row[0] for row in connection.execute("SELECT problem FROM turnwise_outbox ORDER BY id").fetchall()]
    assert "there is no group `nothing`" in problems[0] and len(problems) == 3
    client.add_group("nothing")
    connection.execute("UPDATE turnwise_outbox SET problem = NULL WHERE problem LIKE '%nothing%'")
    connection.commit()
    assert relay.step() == 2
    assert len(list(client.jobs(type="mail"))) == 20
    relay.close()


def test_what_could_run_twice_is_refused_at_once(client: Client, database: Database) -> None:
    _, connect = database
    connection = connect()
    with pytest.raises(ValueError, match="a relay may add a job twice"):
        outbox.add(connection, "mail", if_exists="again")
    with pytest.raises(ValueError, match="a relay may add a job twice"):
        outbox.add(connection, "mail", unique={"mode": "until_end", "on_conflict": "after"})
    connection.rollback()
    for wrong in ("oracle://x", "app.db"):
        with pytest.raises(ValueError, match="an outbox is"):
            Relay(wrong, client)


@pytest.mark.usefixtures("connected")
def test_rows_wait_while_the_server_is_away(server: Server, client: Client, database: Database) -> None:
    url, connect = database
    connection = connect()
    outbox.add(connection, "mail", id="a")
    connection.commit()
    server.kill()
    impatient = Client(server.url, retry_for=0.1)
    relay = Relay(url, impatient)
    thread = threading.Thread(target=relay.run)
    thread.start()
    time.sleep(0.5)
    assert connection.execute("SELECT count(*) FROM turnwise_outbox WHERE problem IS NULL").fetchone()[0] == 1
    connection.commit()
    server.start()
    eventually(lambda: [job["id"] for job in client.jobs(type="mail")] == ["a"])
    relay.stop()
    thread.join(10)
    assert not thread.is_alive()
    impatient.close()


def test_an_error_of_the_server_marks_no_row(client: Client, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    url, connect = database
    connection = connect()
    outbox.add(connection, "mail", id="a")
    connection.commit()
    relay = Relay(url, client)

    def fails(*_: Any) -> Any:
        raise Refused("internal", "the store is damaged", status=500)

    with monkeypatch.context() as patched:
        patched.setattr("turnwise_client._api.add_texts", fails)
        with pytest.raises(Refused):
            relay.step()
    assert (relay.stats()["waiting"], relay.stats()["refused"]) == (1, 0)
    assert relay.step() == 1
    relay.close()


def test_a_relay_ends_with_the_workers_beside_it(client: Client, database: Database) -> None:
    class Ended:
        def __init__(self, error: Exception | None) -> None:
            self.error = error

        async def run(self) -> None:
            if self.error:
                raise self.error

        def stop(self) -> None: ...

    work([Ended(None)], [Relay(database[0], client)])  # type: ignore[list-item]
    with pytest.raises(Refused):
        work([Ended(Refused("unauthorized", "no token", status=401))], [Relay(database[0], client)])  # type: ignore[list-item]


@pytest.mark.usefixtures("connected")
def test_a_connection_of_asyncio_adds_too(client: Client, postgresql: str) -> None:
    asyncpg: Any = pytest.importorskip("asyncpg")

    async def add() -> list[str]:
        connection = await psycopg.AsyncConnection.connect(postgresql)
        await connection.execute("DROP TABLE IF EXISTS turnwise_outbox")
        for statement in outbox.POSTGRESQL.split(";\n")[:-1]:
            await connection.execute(statement)
        first = await jobs.add.add_in_async(connection, 1)
        await connection.commit()
        await jobs.add.add_in_async(connection, 2)
        await connection.rollback()
        await connection.close()
        other = await asyncpg.connect(postgresql)
        async with other.transaction():
            second = await jobs.add.add_in_async(other, 3)
        await other.close()
        return [first.id, second.id]

    ids = asyncio.run(add())
    relay = Relay(postgresql, client)
    assert relay.step() == 2
    relay.close()
    assert {job["id"] for job in client.jobs(type="test")} == set(ids)


@pytest.mark.usefixtures("connected")
@pytest.mark.parametrize("driver", ["aiomysql", "asyncmy"])
def test_a_connection_of_asyncio_to_mysql_adds_too(client: Client, mysql: str, driver: str) -> None:
    parts = urllib.parse.urlsplit(mysql)
    where: dict[str, Any] = {"host": parts.hostname, "port": parts.port, "user": "root"}
    with Mysql(**where, database="test") as connection:
        connection.execute("DROP TABLE IF EXISTS turnwise_outbox")
        outbox.create_table(connection)

    async def add() -> str:
        connection = await pytest.importorskip(driver).connect(**where, db="test")
        await jobs.add.add_in_async(connection, 1)
        await connection.rollback()
        handle = await jobs.add.add_in_async(connection, 2)
        await connection.commit()
        connection.close()
        return handle.id

    id = asyncio.run(add())
    relay = Relay(mysql, client)
    assert relay.step() == 1
    relay.close()
    assert [job["id"] for job in client.jobs(type="test")] == [id]


def test_a_relay_that_waits_for_the_server_holds_up_no_transaction(
    client: Client, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, connect = database
    connection = connect()
    for n in range(10):
        outbox.add(connection, "mail", id=f"before-{n}")
    connection.commit()
    adding = _api.add_texts

    def meanwhile(*arguments: Any) -> Any:
        other = connect()
        outbox.add(other, "mail", id=f"during-{time.time_ns()}")
        other.commit()
        return adding(*arguments)

    relay = Relay(url, client)
    with monkeypatch.context() as patched:
        patched.setattr("turnwise_client._api.add_texts", meanwhile)
        assert relay.step() == 10 and relay.step() == 1
    assert relay.step() == 1
    relay.close()
    assert len(list(client.jobs(type="mail"))) == 12


@pytest.mark.usefixtures("connected")
def test_a_killed_relay_loses_no_job_and_adds_none_twice(server: Server, client: Client, database: Database) -> None:
    """Of ten transactions, one is rolled back. Relays and workers run all the time, and a relay is killed again and again."""
    url, connect = database
    server.worker("--slots", "64", app="quick")
    committed: list[str] = []

    def transactions() -> None:
        connection = connect()
        for n in range(TRANSACTIONS):
            connection.execute(f"INSERT INTO orders (id) VALUES ({n})")
            id = outbox.add(connection, "quick", {"n": n}, task="note")
            if n % 10 == 3:
                connection.rollback()
            else:
                connection.commit()
                committed.append(id)

    writer = threading.Thread(target=transactions)
    writer.start()
    deadline = time.monotonic() + 300 + TRANSACTIONS / 20
    kills, patience = 0, 1.0
    outbox_rows = connect()

    def left() -> int:
        count: int = outbox_rows.execute("SELECT count(*) FROM turnwise_outbox").fetchone()[0]
        outbox_rows.commit()
        return count

    while writer.is_alive() or left() > 0:
        assert time.monotonic() < deadline
        run = len(server.notes())
        relays = [server.relay(url), server.relay(url)]
        time.sleep(random.uniform(0.4, 1.0) * patience)
        for relay in relays:
            relay.kill()
            relay.wait()
            kills += 1
        # On a busy machine, a relay needs longer to start.
        patience = 1.0 if len(server.notes()) > run else 1.5 * patience
    writer.join()
    assert kills >= 2
    eventually(lambda: len(server.notes()) >= len(committed), 300 + TRANSACTIONS / 20, "all jobs have run")
    time.sleep(0.5)
    assert sorted(server.notes()) == sorted(committed)
    assert len(committed) == TRANSACTIONS - len(range(3, TRANSACTIONS, 10))


@pytest.mark.usefixtures("connected")
def test_the_worker_command_runs_a_relay(server: Server, client: Client, database: Database) -> None:
    url, connect = database
    process = server.worker("--outbox", url, "--grace", "1", "--processes", "2")
    connection = connect()
    handle = jobs.add.add_in(connection, 1, b=2)
    connection.commit()
    assert handle_result(handle) == 3
    process.terminate()
    assert process.wait(20) == 0
    alone = server.relay(url)
    late = jobs.add.add_in(connection, 5)
    connection.commit()
    eventually(lambda: [job["id"] for job in client.jobs(type="test", state="pending")] == [late.id])
    alone.terminate()
    assert alone.wait(20) == 0


def handle_result(handle: Any) -> Any:
    """The result of a job that the relay has yet to add."""
    eventually(lambda: handle.id in {job["id"] for job in handle._client.jobs(type=handle.type)})
    return handle.result(20)
