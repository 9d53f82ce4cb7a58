"""The outbox: jobs that are added in the transaction of the application's own database, and the relay that passes them to the server.

`Task.add_in(connection, …)` and `outbox.add` insert a row where the application writes its own. If its transaction is rolled back, there is no
job. A `Relay` reads the rows, adds their jobs, and deletes the rows. It may be killed at any moment, run several times, or lose answers: each job
has its id in the row, and the server adds a job with one id once.

Databases: SQLite (`sqlite3`), PostgreSQL (`psycopg` 3, with or without asyncio, and `asyncpg`), and MySQL or MariaDB (`PyMySQL`, `mysqlclient`,
and with asyncio `aiomysql` and `asyncmy`)."""

from __future__ import annotations

import importlib.util
import json
import logging
import sqlite3
import threading
import time
import urllib.parse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, Union

from . import _api, _spec
from .client import Client
from .errors import Refused, Unavailable
from .middleware import Middleware, around_add

if TYPE_CHECKING:
    from typing_extensions import Unpack

log = logging.getLogger(__name__)

# A request has at most so many jobs, and about so many bytes of them.
BATCH = 500
BATCH_BYTES = 1 << 20
# Without a notification, the relay looks this often.
LOOK_S = 1.0
# After an error that may pass, the relay waits, longer each time.
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
# The rows of a tenant for whose jobs the server has no room wait for so long.
FULL_S = 5.0
# After so many refusals in a row for such a reason, the rest of a batch waits.
MAX_REFUSALS = 20
# MySQL has no index of longer texts.
MAX_PROBLEM = 700
CHANNEL = "turnwise_outbox"
# Whether a row in PostgreSQL notifies the relay. Commits that notify wait for each other: with thousands of them per second, set this to false.
NOTIFY = True

SQLITE = """\
CREATE TABLE IF NOT EXISTS turnwise_outbox (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    job TEXT NOT NULL,
    added_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')),
    problem TEXT
);
CREATE INDEX IF NOT EXISTS turnwise_outbox_waiting ON turnwise_outbox (id) WHERE problem IS NULL;
"""
POSTGRESQL = """\
CREATE TABLE IF NOT EXISTS turnwise_outbox (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job text NOT NULL,
    added_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    problem text
);
CREATE INDEX IF NOT EXISTS turnwise_outbox_waiting ON turnwise_outbox (id) WHERE problem IS NULL;
"""
# MySQL has no indexes of some rows only: this one finds the rows without a problem.
MYSQL = """\
CREATE TABLE IF NOT EXISTS turnwise_outbox (
    id bigint NOT NULL AUTO_INCREMENT PRIMARY KEY,
    job longtext NOT NULL,
    added_at timestamp(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    problem varchar(700),
    INDEX turnwise_outbox_waiting (problem, id)
) ENGINE = InnoDB CHARACTER SET utf8mb4;
"""
_MYSQL_MODULES = {"pymysql", "MySQLdb", "aiomysql", "asyncmy"}


def add_in(
    connection: Any, job_type: str, options: Any, stated: _spec.JobOptions, *, middleware: Sequence[Middleware] = ()
) -> str:
    """Inserts a job into the outbox, in the transaction of this connection. Returns the job's id."""
    with around_add(middleware, _api.adding([(job_type, options, stated)])) as adding:
        id, text = _row(adding.jobs[0])
        if isinstance(connection, sqlite3.Connection):
            connection.execute("INSERT INTO turnwise_outbox (job) VALUES (?)", (text,))
        elif _is_mysql(connection):
            connection.cursor().execute("INSERT INTO turnwise_outbox (job) VALUES (%s)", (text,))
        else:
            connection.execute("INSERT INTO turnwise_outbox (job) VALUES (%s)", (text,))
            if NOTIFY:
                connection.execute(f"NOTIFY {CHANNEL}")
    return id


async def add_in_async(
    connection: Any, job_type: str, options: Any, stated: _spec.JobOptions, *, middleware: Sequence[Middleware] = ()
) -> str:
    """The same for a connection of `asyncpg`, `aiomysql` or `asyncmy`, or an `AsyncConnection` of `psycopg`."""
    with around_add(middleware, _api.adding([(job_type, options, stated)])) as adding:
        id, text = _row(adding.jobs[0])
        if _is_mysql(connection):
            async with connection.cursor() as cursor:
                await cursor.execute("INSERT INTO turnwise_outbox (job) VALUES (%s)", (text,))
            return id
        if type(connection).__module__.partition(".")[0] == "asyncpg":
            await connection.execute("INSERT INTO turnwise_outbox (job) VALUES ($1)", text)
        else:
            await connection.execute("INSERT INTO turnwise_outbox (job) VALUES (%s)", (text,))
        if NOTIFY:
            await connection.execute(f"NOTIFY {CHANNEL}")
    return id


def add(connection: Any, type: str, options: Any = None, /, **stated: Unpack[_spec.JobOptions]) -> str:
    """Adds a job with this transaction, without a task of an app. Returns the job's id."""
    return add_in(connection, type, options, stated)


def create_table(connection: Any) -> None:
    """Creates the table of the outbox, unless it is there. A migration may instead have the text of `SQLITE`, `POSTGRESQL` or `MYSQL`."""
    if _is_mysql(connection):
        connection.cursor().execute(MYSQL)
        return
    statements = SQLITE if isinstance(connection, sqlite3.Connection) else POSTGRESQL
    for statement in statements.split(";\n")[:-1]:
        connection.execute(statement)


def _is_mysql(connection: Any) -> bool:
    """By its driver, of which no one need be installed."""
    return any(kind.__module__.partition(".")[0] in _MYSQL_MODULES for kind in type(connection).__mro__)


def _row(job: dict[str, Any]) -> tuple[str, str]:
    """The id of a job, and its row."""
    if not _api.is_idempotent(job):
        raise ValueError("a relay may add a job twice: `if_exists` cannot be `again` here, nor a key's `on_conflict` be `after`")
    if "delay_ms" in job:
        # It counts from now on, and not from when the relay comes.
        job["not_before_us"] = time.time_ns() // 1000 + job.pop("delay_ms") * 1000
    id: str = job["id"]
    return id, json.dumps(job, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


class OutboxStats(TypedDict):
    """What is in an outbox."""

    # Rows that wait for the relay.
    waiting: int
    # How long the oldest of them has waited, in seconds; 0 if there is none.
    lag: float
    # Rows that the server has refused. The column `problem` says why.
    refused: int


class _Sqlite:
    """An outbox in a file of SQLite."""

    def __init__(self, file: str) -> None:
        # Each statement is a transaction of its own, so that the application does not wait for the relay.
        # A file that is not there is an error, and is not created.
        uri = f"file:{urllib.parse.quote(file)}?mode=rw"
        self.connection = sqlite3.connect(uri, uri=True, timeout=30, isolation_level=None, check_same_thread=False)

    def take(self, count: int, after: int) -> list[tuple[int, str]]:
        rows = "SELECT id, job FROM turnwise_outbox WHERE problem IS NULL AND id > ? ORDER BY id LIMIT ?"
        return self.connection.execute(rows, (after, count)).fetchall()

    def done(self, ids: list[int], problems: dict[int, str]) -> None:
        self.connection.execute("BEGIN IMMEDIATE")
        self.connection.executemany("DELETE FROM turnwise_outbox WHERE id = ?", [(id,) for id in ids])
        refused = [(problem, id) for id, problem in problems.items()]
        self.connection.executemany("UPDATE turnwise_outbox SET problem = ? WHERE id = ?", refused)
        self.connection.execute("COMMIT")

    def give_back(self) -> None:
        if self.connection.in_transaction:
            self.connection.execute("ROLLBACK")

    def stats(self) -> OutboxStats:
        lag = "coalesce((julianday('now') - julianday(min(added_at))) * 86400, 0)"
        text = f"SELECT count(*), {lag} FROM turnwise_outbox WHERE problem IS NULL"
        waiting, age = self.connection.execute(text).fetchone()
        refused = self.connection.execute("SELECT count(*) FROM turnwise_outbox WHERE problem IS NOT NULL").fetchone()[0]
        return {"waiting": waiting, "lag": max(0.0, age), "refused": refused}

    def wait(self, stop: threading.Event, seconds: float) -> None:
        stop.wait(seconds)

    def close(self) -> None:
        self.connection.close()


_TAKE = "SELECT id, job FROM turnwise_outbox WHERE problem IS NULL AND id > %s ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED"


class _Postgresql:
    """An outbox in PostgreSQL."""

    def __init__(self, url: str) -> None:
        import psycopg

        self.connection = psycopg.connect(url, autocommit=True)
        self.connection.execute(f"LISTEN {CHANNEL}")

    def take(self, count: int, after: int) -> list[tuple[int, str]]:
        # Another relay takes other rows meanwhile. If this one dies, the database gives its rows back.
        self.connection.execute("BEGIN")
        return self.connection.execute(_TAKE, (after, count)).fetchall()

    def done(self, ids: list[int], problems: dict[int, str]) -> None:
        self.connection.execute("DELETE FROM turnwise_outbox WHERE id = ANY(%s)", (ids,))
        for id, problem in problems.items():
            self.connection.execute("UPDATE turnwise_outbox SET problem = %s WHERE id = %s", (problem, id))
        self.connection.execute("COMMIT")

    def give_back(self) -> None:
        if not self.connection.closed:
            self.connection.execute("ROLLBACK")

    def stats(self) -> OutboxStats:
        text = """SELECT count(*) FILTER (WHERE problem IS NULL), count(*) FILTER (WHERE problem IS NOT NULL),
            coalesce(extract(epoch FROM clock_timestamp() - min(added_at) FILTER (WHERE problem IS NULL)), 0)
            FROM turnwise_outbox"""
        row = self.connection.execute(text).fetchone()
        assert row is not None
        return {"waiting": row[0], "lag": max(0.0, float(row[2])), "refused": row[1]}

    def wait(self, stop: threading.Event, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not stop.is_set() and time.monotonic() < end:
            for _ in self.connection.notifies(timeout=0.2, stop_after=1):
                return

    def close(self) -> None:
        self.connection.close()


class _Mysql:
    """An outbox in MySQL (8 or later) or MariaDB (10.6 or later)."""

    def __init__(self, url: str) -> None:
        import pymysql

        parts = urllib.parse.urlsplit(url)
        user, password, database = (urllib.parse.unquote(part or "") for part in (parts.username, parts.password, parts.path[1:]))
        settings: dict[str, Any] = {"host": parts.hostname, "port": parts.port or 3306, "user": user, "password": password}
        settings.update(urllib.parse.parse_qsl(parts.query))
        # At another level, the locks of rows that are read keep the application from inserting rows behind them.
        settings["init_command"] = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
        self.connection = pymysql.connect(database=database, charset="utf8mb4", autocommit=True, **settings)

    def _execute(self, text: str, *parameters: Any) -> Any:
        cursor = self.connection.cursor()
        cursor.execute(text, parameters)
        return cursor

    def take(self, count: int, after: int) -> list[tuple[int, str]]:
        # As in PostgreSQL.
        self.connection.begin()
        return list(self._execute(_TAKE, after, count).fetchall())

    def done(self, ids: list[int], problems: dict[int, str]) -> None:
        if ids:
            self._execute("DELETE FROM turnwise_outbox WHERE id IN %s", ids)
        for id, problem in problems.items():
            self._execute("UPDATE turnwise_outbox SET problem = %s WHERE id = %s", problem, id)
        self.connection.commit()

    def give_back(self) -> None:
        if self.connection.open:
            self.connection.rollback()

    def stats(self) -> OutboxStats:
        text = """SELECT count(if(problem IS NULL, 1, NULL)), count(problem),
            coalesce(timestampdiff(microsecond, min(if(problem IS NULL, added_at, NULL)), current_timestamp(6)), 0) / 1e6
            FROM turnwise_outbox"""
        waiting, refused, lag = self._execute(text).fetchone()
        return {"waiting": waiting, "lag": max(0.0, float(lag)), "refused": refused}

    def wait(self, stop: threading.Event, seconds: float) -> None:
        stop.wait(seconds)

    def close(self) -> None:
        self.connection.close()


_Outbox = Union[_Sqlite, _Postgresql, _Mysql]


def _opener(url: str) -> Callable[[], _Outbox]:
    """What connects to this database."""
    if url.startswith(("postgresql://", "postgres://")):
        if importlib.util.find_spec("psycopg") is None:
            raise ValueError("an outbox in PostgreSQL needs psycopg 3: pip install 'turnwise-client[postgresql]'")
        return lambda: _Postgresql(url)
    if url.startswith(("mysql://", "mariadb://")):
        if importlib.util.find_spec("pymysql") is None:
            raise ValueError("an outbox in MySQL needs PyMySQL: pip install 'turnwise-client[mysql]'")
        return lambda: _Mysql(url)
    if url.startswith("sqlite:///"):
        return lambda: _Sqlite(url.removeprefix("sqlite:///"))
    raise ValueError("an outbox is `postgresql://…`, `mysql://…` or `sqlite:///file`")


# The type and the tenant of a job.
_Lane = tuple[str, str]


def _lane(row: tuple[int, str]) -> _Lane:
    try:
        job = json.loads(row[1])
        return str(job["type"]), str(job.get("tenant"))
    except (ValueError, TypeError, KeyError, AttributeError):
        # The server refuses it.
        return "", ""


class Relay:
    """Passes the rows of an outbox to the server. `url` is `postgresql://…`, `mysql://user:password@host/database`, or `sqlite:///`
    with the path of the file behind it.

    A row that the server refuses stays, with the reason in its column `problem`, and holds up no other. Set the column to null to try again.
    The rows of a tenant that has as many waiting jobs as it may wait until there is room, and hold up no other either."""

    def __init__(self, url: str, client: Client, *, batch: int = BATCH) -> None:
        if not 1 <= batch <= 1000:
            raise ValueError("a batch has 1 to 1000 jobs")
        self._connect = _opener(url)
        self._batch = batch
        self._client = client
        self._stop = threading.Event()
        self._open: _Outbox | None = None
        # The types and tenants of which the server takes no job now, and until when they are left alone.
        self._full: dict[_Lane, float] = {}
        # While there are some, the next step goes on behind this row, so that theirs hold up none.
        self._after = 0
        # How many requests in a row were refused for such a reason.
        self._refusals = 0

    def stats(self) -> OutboxStats:
        """What waits, and for how long. Not while `run` runs in another thread."""
        return self._outbox().stats()

    def stop(self) -> None:
        """Makes `run` return after its current batch. Any thread may call it."""
        self._stop.set()

    def close(self) -> None:
        """Closes the connection to the database."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def run(self) -> None:
        """Passes rows on until it is stopped. Errors of the server and of the database are logged, and it tries again."""
        pause = FIRST_PAUSE_S
        while not self._stop.is_set():
            try:
                if not self.step():
                    self._outbox().wait(self._stop, LOOK_S)
                pause = FIRST_PAUSE_S
            except Exception as error:  # Each database has errors of its own.
                log.warning("the outbox is not passed on: %s; again in %g s", error, pause)
                self.close()
                self._stop.wait(pause)
                pause = min(2 * pause, LONGEST_PAUSE_S)
        self.close()

    def step(self) -> int:
        """Passes one batch on. Returns how many rows it had. Raises what the server or the database raises, and then the rows stay."""
        outbox = self._outbox()
        now = time.monotonic()
        if any(until <= now for until in self._full.values()):
            self._full = {lane: until for lane, until in self._full.items() if until > now}
            self._after = 0
        self._refusals = 0
        try:
            rows = outbox.take(self._batch, self._after)
            added: list[int] = []
            problems: dict[int, str] = {}
            ready = [row for row in rows if _lane(row) not in self._full] if self._full else rows
            begin = 0
            while begin < len(ready):
                end, size = begin, 0
                while end < len(ready) and (end == begin or size + len(ready[end][1]) <= BATCH_BYTES):
                    size += len(ready[end][1])
                    end += 1
                self._pass_on(ready[begin:end], added, problems)
                begin = end
            if problems and not added and all(problem.startswith("forbidden") for problem in problems.values()):
                # The token may lack a scope, and no row is at fault.
                raise PermissionError(next(iter(problems.values())))
            outbox.done(added, problems)
            self._after = rows[-1][0] if rows and self._full else self._after
        except BaseException:
            outbox.give_back()
            raise
        for id, problem in problems.items():
            log.error("row %s of the outbox is refused: %s", id, problem)
        return len(rows) if self._refusals <= MAX_REFUSALS else 0

    def _outbox(self) -> _Outbox:
        if self._open is None:
            self._open = self._connect()
        return self._open

    def _pass_on(self, rows: list[tuple[int, str]], added: list[int], problems: dict[int, str]) -> None:
        """Adds the jobs of these rows. If the server refuses one of them, it is found by halves."""
        if self._refusals > MAX_REFUSALS:
            return
        try:
            self._client._transport.run(_api.add_texts(self._client._core, [job for _, job in rows]))
            self._refusals = 0
        except Unavailable as error:
            if error.status != 429:
                raise
            self._refusals += 1
            self._find_room(rows, added, problems, error)
            return
        except Refused as error:
            # The row is at fault only if the server says so, and not if it has an error of its own.
            if error.status is None or error.status == 401 or error.status >= 500:
                raise
            if len(rows) == 1:
                problems[rows[0][0]] = str(error)[:MAX_PROBLEM]
                return
            half = len(rows) // 2
            self._pass_on(rows[:half], added, problems)
            self._pass_on(rows[half:], added, problems)
        else:
            added.extend(id for id, _ in rows)

    def _find_room(self, rows: list[tuple[int, str]], added: list[int], problems: dict[int, str], error: Unavailable) -> None:
        """Finds which tenants among these rows have as many waiting jobs as they may, and adds what there is room for."""
        if self._refusals > MAX_REFUSALS:
            log.warning("the server takes no more jobs now: %s", error)
            return
        lanes = sorted({_lane(row) for row in rows})
        if len(rows) == 1:
            self._full[lanes[0]] = time.monotonic() + FULL_S
            log.info("jobs of the outbox wait for room: %s", error)
        elif len(lanes) > 1:
            first = set(lanes[: len(lanes) // 2])
            self._pass_on([row for row in rows if _lane(row) in first], added, problems)
            self._pass_on([row for row in rows if _lane(row) not in first], added, problems)
        else:
            half = len(rows) // 2
            self._pass_on(rows[:half], added, problems)
            if lanes[0] not in self._full:
                self._pass_on(rows[half:], added, problems)
