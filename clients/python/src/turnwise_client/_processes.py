"""Several worker processes below one that supervises them: it replaces those that die, passes signals on, and restarts all when a file changes.

A process is a complete `turnwise-worker` that has one thing from its parent: the end of a pipe which nobody writes. When the parent is gone,
however it died, the pipe is closed, and the process ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence

log = logging.getLogger("turnwise_client.processes")

# Before a process that died is replaced: longer each time, until one has run for `STEADY_S`.
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
STEADY_S = 10.0
# How a process ends that was asked to stop; one that an operator has drained ends with 0, and is not replaced.
ASKED = 128 + signal.SIGTERM
# How a process ends whose arguments are wrong.
USAGE = 2


def end_with_parent(pipe: int) -> None:
    """Ends this process as soon as the other end of the pipe is closed."""

    def wait() -> None:
        os.read(pipe, 1)
        os._exit(1)

    threading.Thread(target=wait, name="turnwise-parent", daemon=True).start()


def supervise(commands: Sequence[Sequence[str]], *, reload: bool) -> int:
    """Runs a process for each of these arguments of `turnwise-worker`. Returns the exit status. Only in the main thread."""

    async def run() -> int:
        return await _Supervisor(reload).run(commands)

    return asyncio.run(run())


class _Supervisor:
    def __init__(self, reload: bool) -> None:
        # The end to write stays open as long as this process lives.
        self.pipe, _ = os.pipe()
        self.reload = reload
        self.stopping = asyncio.Event()
        self.status = 0
        # Each time the files change, all processes become those of an earlier generation.
        self.generation = 0
        self.changed = asyncio.Event()
        self.children: set[asyncio.subprocess.Process] = set()

    async def run(self, commands: Sequence[Sequence[str]]) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._asked_to_stop, number)
        watching = asyncio.create_task(self._watch()) if self.reload else None
        await asyncio.gather(*(self._keep(arguments) for arguments in commands))
        self.stopping.set()
        if watching is not None:
            await watching
        return self.status

    def _asked_to_stop(self, number: int) -> None:
        if self.stopping.is_set():
            self.status = 128 + number
            self._signal(signal.SIGKILL)
        else:
            self._stop()

    def _stop(self) -> None:
        self.stopping.set()
        self.changed.set()
        self._signal(signal.SIGTERM)

    def _signal(self, number: int) -> None:
        for child in self.children:
            with contextlib.suppress(ProcessLookupError):
                child.send_signal(number)

    async def _keep(self, arguments: Sequence[str]) -> None:
        """Runs one process after the other."""
        command = [sys.executable, "-m", "turnwise_client", *arguments, "--parent-pipe", str(self.pipe)]
        pause = FIRST_PAUSE_S
        while not self.stopping.is_set():
            generation, started = self.generation, time.monotonic()
            child = await asyncio.create_subprocess_exec(*command, pass_fds=[self.pipe])
            self.children.add(child)
            if self.stopping.is_set() or generation != self.generation:
                # The signal came while it was started.
                with contextlib.suppress(ProcessLookupError):
                    child.terminate()
            status = await child.wait()
            self.children.discard(child)
            if status == 0:
                return
            if self.stopping.is_set() or generation != self.generation:
                continue
            if status == USAGE and not self.reload:
                self.status = USAGE
                self._stop()
                return
            pause = FIRST_PAUSE_S if time.monotonic() - started > STEADY_S else pause
            log.error("the process %s ended with %s; another one in %g s", child.pid, status, pause)
            await self._pause(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    async def _pause(self, seconds: float) -> None:
        """Waits, unless the files change or it is to stop."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.changed.wait(), seconds)

    async def _watch(self) -> None:
        """Restarts the processes after each change of a file of Python below the current directory."""
        from watchfiles import PythonFilter, awatch

        async for changes in awatch(".", watch_filter=PythonFilter(), stop_event=self.stopping):
            names = sorted({os.path.relpath(path) for _, path in changes})
            log.info("changed: %s", ", ".join(names[:5]))
            self.generation += 1
            self.changed.set()
            self.changed = asyncio.Event()
            self._signal(signal.SIGTERM)
