"""The command `turnwise-worker`."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.util
import logging
import os
import signal
import sys
from collections.abc import Coroutine, Sequence
from typing import Any

from ._processes import ASKED, end_with_parent, supervise
from .app import App
from .client import Client
from .errors import TurnwiseError
from .outbox import Relay
from .worker import STOP_WAIT_S, Worker


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="turnwise-worker", description="Run the tasks of an app.")
    parser.add_argument("app", nargs="?", help="the module of the app: `myapp.jobs`, or `myapp.jobs:app` if it has several")
    parser.add_argument("--slots", type=int, default=int(os.environ.get("TURNWISE_SLOTS", "8")), help="jobs at the same time (8)")
    parser.add_argument("--grace", type=float, default=30.0, help="how long jobs may run on after SIGTERM, in s (30)")
    parser.add_argument("--tasks", help="only these tasks, with commas between them")
    parser.add_argument("--name", default=os.environ.get("TURNWISE_FLEET_WORKER"), help="a name for people")
    parser.add_argument("--server", help="the server's URL (TURNWISE_SERVER). The token is in TURNWISE_TOKEN")
    outbox = "pass on the jobs of this outbox, too: postgresql://…, mysql://… or sqlite:///file (TURNWISE_OUTBOX). Without an app, only these"
    parser.add_argument("--outbox", default=os.environ.get("TURNWISE_OUTBOX"), help=outbox)
    parser.add_argument("--processes", type=int, help="worker processes, each with its own slots. A dead one is replaced")
    parser.add_argument("--reload", action="store_true", help="restart when a file of Python below this directory changes")
    # What a process gets from its parent, if that has several.
    parser.add_argument("--parent-pipe", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--log", default="INFO", help="the level of the log: DEBUG, INFO, WARNING or ERROR")
    given = parser.parse_args(arguments)
    level = getattr(logging, given.log.upper(), None)
    if not isinstance(level, int):
        parser.error(f"`{given.log}` is no level of the log")
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # It logs each request.
    for name in ("httpx2", "httpcore2"):
        logging.getLogger(name).setLevel(max(level, logging.WARNING))
    if given.parent_pipe is not None:
        end_with_parent(given.parent_pipe)
    elif given.processes is not None or given.reload:
        if given.reload and importlib.util.find_spec("watchfiles") is None:
            parser.error("--reload needs watchfiles: pip install 'turnwise-client[reload]'")
        if given.processes is not None and given.processes < 1:
            parser.error("there is at least one process")
        first = sys.argv[1:] if arguments is None else arguments
        # Beside workers, one relay is enough.
        others = [*first, "--outbox", ""] if given.app else first
        sys.exit(supervise([first] + [others] * ((given.processes or 1) - 1), reload=given.reload))
    sys.path.insert(0, os.getcwd())
    workers: list[Worker] = []
    relays: list[Relay] = []
    try:
        if given.app:
            tasks = given.tasks.split(",") if given.tasks else None
            app = find(given.app)
            workers.append(Worker(app, slots=given.slots, grace=given.grace, name=given.name, tasks=tasks, url=given.server))
        if given.outbox:
            relays.append(Relay(given.outbox, Client(given.server)))
    except ValueError as error:
        parser.error(str(error))
    if not workers and not relays:
        parser.error("state the module of an app, or --outbox")
    try:
        asked = work(workers, relays, second_at_once=given.parent_pipe is None)
    except TurnwiseError as error:
        sys.exit(f"turnwise-worker: {error}")
    if asked and given.parent_pipe is not None:
        sys.exit(ASKED)


def find(where: str) -> App:
    """The app of a module, by name if it has several."""
    module_name, _, name = where.partition(":")
    module = importlib.import_module(module_name)
    apps = {name: value for name, value in vars(module).items() if isinstance(value, App)}
    if name:
        if name not in apps:
            raise ValueError(f"{module_name} has no app {name}")
        return apps[name]
    if len({id(app) for app in apps.values()}) != 1:
        raise ValueError(f"{module_name} has {len(apps)} apps; name one, as in `{module_name}:{next(iter(apps), 'app')}`")
    return next(iter(apps.values()))


def work(workers: list[Worker], relays: Sequence[Relay] = (), *, second_at_once: bool = True) -> bool:
    """Runs workers and relays until SIGTERM or SIGINT asks them to stop; a second one ends the process at once. Only in the main thread.

    Returns whether a signal has asked them. Without `second_at_once`, further signals do nothing: a process below a parent gets them from
    there, and may get them from a terminal or a service manager, too."""
    asked = False

    def asked_to_stop(number: int, _: object) -> None:
        nonlocal asked
        if asked:
            if second_at_once:
                os._exit(128 + number)
            return
        asked = True
        for worker in workers:
            worker.stop()
        for relay in relays:
            relay.stop()

    async def all_of_them() -> None:
        passing = [asyncio.create_task(asyncio.to_thread(relay.run)) for relay in relays]
        try:
            # Relays beside workers end with them: the workers may be drained, or refused by the server.
            await asyncio.gather(*((worker.run() for worker in workers) if workers else passing))
        finally:
            for relay in relays:
                relay.stop()
            await asyncio.gather(*passing)

    before = {number: signal.signal(number, asked_to_stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        run(all_of_them())
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return asked


def run(main: Coroutine[Any, Any, None]) -> None:
    """Like `asyncio.run`, but coroutines that ignore that they are cancelled do not keep the process."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(main)
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=STOP_WAIT_S))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
        asyncio.set_event_loop(None)
        loop.close()
