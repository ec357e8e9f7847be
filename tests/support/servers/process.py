"""A server in a process group of its own: ready before it is used, and gone when the tests are, however they end."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

from tests.support.paths import REPOSITORY

READY_TIMEOUT_S = 90.0
STARTS = 3

# The server keeps the shell's pid. A watcher in the same group waits for the end of a pipe whose other end only the
# tests hold, and then kills the group: so no server survives a test run that was itself killed.
_LAUNCHER = 'exec 3<&0; { cat <&3 >/dev/null; kill -KILL 0; } & exec "$@" </dev/null 3<&-'


class ServerFailedError(Exception):
    """A server that the tests need did not start."""


_PORTS: Final = 2000
_WORKER: Final = os.environ.get("PYTEST_XDIST_WORKER", "gw9").removeprefix("gw")  # who starts the run: 9
_FIRST_PORT: Final = 12_000 + int(_WORKER) % 10 * _PORTS
_port_numbers: Final = count(os.getpid() * 37)  # another run on the machine begins elsewhere


def free_port() -> int:
    """A port that nobody listens on now.

    A server may begin to listen long after its port was chosen, and is started again on it. So each worker goes round
    in a range of its own, below 32,768: there no client's end of a connection takes it meanwhile, and one that connects
    to a server that is away does not meet itself. (A packet of MemQ's can tell no higher port either.)
    """
    for _ in range(_PORTS):
        port = _FIRST_PORT + next(_port_numbers) % _PORTS
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise ServerFailedError("no port is free")


@contextmanager
def unanswered_port() -> Generator[int]:
    """A port of the loopback interface that nobody listens on, nor anybody else can: connections are refused."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


def installed_server(relative: str) -> Path:
    """A file that scripts/servers.py installs; ServerFailedError saying so if it is absent."""
    folder = Path(os.environ.get("TIEREDSTORE_SERVERS", REPOSITORY / ".venv" / "servers"))
    tool = folder / relative
    if not tool.exists():
        raise ServerFailedError(f"{tool} is not installed: run make servers (make test does)")
    return tool


def script_of_environment(name: str) -> Path:
    """A program that a wheel of the `servers` extra put beside the interpreter."""
    tool = Path(sys.executable).with_name(name)
    if not tool.exists():
        raise ServerFailedError(f"{tool} is not installed: install the `servers` extra (make test does)")
    return tool


@dataclass(frozen=True)
class Launch:
    """How one server is started: the command, its environment and how to see that it is ready."""

    command: Sequence[str | Path]
    is_ready: Callable[[], bool]
    environment: Mapping[str, str]


class ServerProcess:
    """A running server. ``kill`` is kill -9, at once."""

    def __init__(self, name: str, launch: Launch, log: Path) -> None:
        self.name = name
        self._launch, self._log = launch, log
        self._process = self._begin()

    def _begin(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as output:
            return subprocess.Popen(
                ["/bin/sh", "-c", _LAUNCHER, self.name, *self._launch.command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self._launch.environment},
                cwd=self._log.parent,
                start_new_session=True,
            )

    def start(self) -> None:
        """Once more after ``kill``, at the same address and with what it had written; back when it is ready."""
        self._process = self._begin()
        self.wait_until_ready(self._launch.is_ready)

    def stand_still(self) -> None:
        """Answer nobody; connections stay, and are taken."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Answer again."""
        os.killpg(self._process.pid, signal.SIGCONT)

    def wait_until_ready(self, is_ready: Callable[[], bool]) -> None:
        """ServerFailedError, with the end of the server's log, if it ends or is not ready in time."""
        end = time.monotonic() + READY_TIMEOUT_S
        while not is_ready():
            if self._process.poll() is not None:
                raise ServerFailedError(f"{self.name} ended with code {self._process.returncode}\n{self._log_tail()}")
            if time.monotonic() > end:
                raise ServerFailedError(f"{self.name} was not ready within {READY_TIMEOUT_S} s\n{self._log_tail()}")
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill the server and all that it started; nothing if it is dead already."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()

    def stop(self) -> None:
        """Have the server end in its own way, and kill what is left of it."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(READY_TIMEOUT_S)
        self.kill()

    def _log_tail(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]


@contextmanager
def running(name: str, prepare: Callable[[Path], Launch]) -> Generator[ServerProcess, None, None]:
    """A ready server whose data lie in a fresh folder, which ``prepare`` gets; killed and removed at the end.

    Ports that ``prepare`` chose may be taken by another process before the server binds them: it is asked anew, a few
    times, before a server that ends at its start is an error.
    """
    # Not pytest's folder: its path is too long for the UNIX sockets that some servers make.
    folder = Path(tempfile.mkdtemp(prefix=f"tieredstore-{name}-"))
    server = None
    try:
        server = _started(name, prepare, folder)
        yield server
    finally:
        if server is not None:
            server.kill()
        shutil.rmtree(folder, ignore_errors=True)


def _started(name: str, prepare: Callable[[Path], Launch], folder: Path) -> ServerProcess:
    for attempt in range(STARTS):
        data = folder / str(attempt)
        data.mkdir()
        launch = prepare(data)
        server = ServerProcess(name, launch, folder / f"{attempt}.log")
        try:
            server.wait_until_ready(launch.is_ready)
        except BaseException as error:
            server.kill()
            if attempt == STARTS - 1 or not isinstance(error, ServerFailedError):
                raise
        else:
            return server
    raise ServerFailedError(name)
