"""Server in a separate process group. It is ready before use, and is killed when the tests end, however they end."""

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

from scripts.servers import install
from scripts.steps import SetupError
from tests.support.paths import REPOSITORY

READY_TIMEOUT_S = 90.0
STARTS = 3

# The server takes over the shell's pid. A watcher in the same process group waits for the end of a pipe that only the
# tests hold open, then kills the group. So no server survives a killed test run.
_LAUNCHER = 'exec 3<&0; { cat <&3 >/dev/null; kill -KILL 0; } & exec "$@" </dev/null 3<&-'


class ServerFailedError(Exception):
    """A required server did not start."""


_PORTS: Final = 2000
_WORKER: Final = os.environ.get("PYTEST_XDIST_WORKER", "gw9").removeprefix("gw")  # the run's first process has 9
_FIRST_PORT: Final = 12_000 + int(_WORKER) % 10 * _PORTS
_port_numbers: Final = count(os.getpid() * 37)  # concurrent runs start at different ports


def free_port() -> int:
    """Return a port without a listener.

    A server may bind its port long after this choice, and again after a restart. So the port must stay free, and each
    worker cycles through a private range below 32,768. No client can take such a port as its ephemeral port, and a
    client of a stopped server cannot connect to itself. (MemQ's packets do not support higher ports either.)
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
    """Reserve a loopback port where no process can listen, so that connections are refused."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


def installed_server(relative: str) -> Path:
    """Return a file that scripts/servers.py installs; install it if it is missing, or raise ServerFailedError."""
    folder = Path(os.environ.get("TIEREDSTORE_SERVERS", REPOSITORY / ".venv" / "servers"))
    try:
        install(Path(relative).parts[0], folder)
    except SetupError as error:
        raise ServerFailedError(str(error)) from error
    return folder / relative


def script_of_environment(name: str) -> Path:
    """Return a program that a wheel of the `servers` extra installed next to the interpreter."""
    tool = Path(sys.executable).with_name(name)
    if not tool.exists():
        raise ServerFailedError(f"{tool} is not installed: install the `servers` extra (make test does)")
    return tool


@dataclass(frozen=True)
class Launch:
    """The command that starts a server, its environment, and a check that the server is ready."""

    command: Sequence[str | Path]
    is_ready: Callable[[], bool]
    environment: Mapping[str, str]


class ServerProcess:
    """Running server. ``kill`` is an immediate kill -9."""

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
        """Restart the server after ``kill``, at the same address and with its data; return when it is ready."""
        self._process = self._begin()
        self.wait_until_ready(self._launch.is_ready)

    def stand_still(self) -> None:
        """Suspend the server. Its connections stay open, and the system still accepts new ones."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Resume it."""
        os.killpg(self._process.pid, signal.SIGCONT)

    def wait_until_ready(self, is_ready: Callable[[], bool]) -> None:
        """Wait; raise ServerFailedError, with the end of the server's log, if it ends or is not ready in time."""
        end = time.monotonic() + READY_TIMEOUT_S
        while not is_ready():
            if self._process.poll() is not None:
                raise ServerFailedError(f"{self.name} ended with code {self._process.returncode}\n{self._log_tail()}")
            if time.monotonic() > end:
                raise ServerFailedError(f"{self.name} was not ready within {READY_TIMEOUT_S} s\n{self._log_tail()}")
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill the server and all its child processes; do nothing if it is dead already."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(READY_TIMEOUT_S)
        if self._process.stdin is not None:
            self._process.stdin.close()

    def stop(self) -> None:
        """Stop the server cleanly, and kill any remaining processes."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(READY_TIMEOUT_S)
        self.kill()

    def _log_tail(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]


@contextmanager
def running(name: str, prepare: Callable[[Path], Launch]) -> Generator[ServerProcess, None, None]:
    """Run a ready server with its data in a fresh folder, passed to ``prepare``; kill and remove it at the end.

    Another process may take a port between ``prepare`` and the server's bind. So if a server ends at startup, call
    ``prepare`` again, a few times, before raising an error.
    """
    # Do not use pytest's folder, because its path is too long for the UNIX sockets of some servers.
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
