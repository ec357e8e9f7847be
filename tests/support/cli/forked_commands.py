"""Commands in processes of their own, forked from one that has imported all they need: a signal's tests need many.

Run as a process it is the parent: python -m tests.support.cli.forked_commands MODULE...; requests on stdin, one a line.
"""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tests.support.cli.cli_process import environment
from tieredstore.process import interruption
from tieredstore.process.interruption import TAKING_BACK_S

CLOSED: Final = Path("closed")
"""A stdout or stderr that is none."""

_NAMES: Final = ("stdin", "stdout", "stderr")


@dataclass(frozen=True)
class Ended:
    """A command that has ended: a negative code is that of the signal that killed it."""

    code: int
    stdout: bytes
    stderr: str


class Running:
    """A command under way; its output gathers in files, unless it was given a stdout of its own."""

    def __init__(self, parent: ForkedCommands, process: int, stdout: Path, stderr: Path) -> None:
        self.process = process
        self._parent = parent
        self._stdout = stdout
        self._stderr = stderr

    def send(self, signum: signal.Signals) -> None:
        os.kill(self.process, signum)

    def wait(self, timeout_s: float) -> Ended | None:
        """How it ended; None, and it is killed, if it did not within the time."""
        code = self._parent.ask({"wait": self.process, "timeout_s": timeout_s})["code"]
        if code is None:
            return None
        stdout, stderr = (path.read_bytes() if path.is_file() else b"" for path in (self._stdout, self._stderr))
        return Ended(code, stdout, stderr.decode())


class ForkedCommands:
    """Starts them; a context manager. ``modules`` are imported once, for all of them."""

    def __init__(self, folder: Path, modules: Sequence[str] = ()) -> None:
        self._folder = folder
        self._count = 0
        self._parent = subprocess.Popen(
            [sys.executable, "-m", __name__, *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(),
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._parent as parent:
            if parent.stdin is not None:
                parent.stdin.close()
            parent.wait(120)

    def start(
        self,
        *arguments: object,
        stdout: Path | None = None,
        stderr: Path | None = None,
        settings: Path | None = None,
        interruptible: bool = True,
        stdout_has_reader: bool = False,
        terminal: Path | None = None,
        environment: Mapping[str, str] | None = None,
        taking_back_s: float = TAKING_BACK_S,
    ) -> Running:
        """Run a command; a stdout or stderr of its own may be a device, a pipe that has a name, or CLOSED.

        One that ``stdout_has_reader`` of is a pipe that breaks when that goes away; another one never does.
        ``terminal`` becomes the one that controls it, and all of its streams that are not given; ``environment`` is
        added to its own. ``taking_back_s``: how long it may take back what it did, once a signal has come.
        """
        self._count += 1
        folder = self._folder / f"command-{self._count}"
        folder.mkdir()
        output, complaints = stdout or terminal or folder / "stdout", stderr or terminal or folder / "stderr"
        request = {
            "arguments": [*map(str, arguments), *([] if settings is None else ["-c", str(settings)])],
            "stdout": str(output),
            "stderr": str(complaints),
            "interruptible": interruptible,
            "stdout_has_reader": stdout_has_reader,
            "terminal": None if terminal is None else str(terminal),
            "environment": dict(environment or {}),
            "taking_back_s": taking_back_s,
        }
        return Running(self, self.ask(request)["process"], output, complaints)

    def ask(self, request: Mapping[str, object]) -> dict[str, Any]:
        """One request, one answer."""
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        self._parent.stdin.write(json.dumps(request) + "\n")
        self._parent.stdin.flush()
        answer: dict[str, Any] = json.loads(self._parent.stdout.readline())
        return answer


def serve() -> Mapping[str, Any] | None:
    """Answer requests. In each child its request is given back, in the parent None at the end of all of them."""
    while line := sys.stdin.readline():
        request: dict[str, Any] = json.loads(line)
        if "wait" in request:
            answer: dict[str, int | None] = {"code": _wait(request["wait"], request["timeout_s"])}
        else:
            process = os.fork()
            if not process:
                return request
            answer = {"process": process}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    return None


def _wait(process: int, timeout_s: float) -> int | None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return None


def become(request: Mapping[str, Any]) -> None:
    """In a child: run the command as the console script would, but that a busy machine does not cut its end short."""
    untyped: Any = interruption
    untyped.TAKING_BACK_S, untyped._LAST_ACT_S = request["taking_back_s"], 60.0
    # The parent may run in the background of a shell, which has interrupts ignored, or under nohup.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler if request["interruptible"] else signal.SIG_IGN)
    os.environ.update(request["environment"])
    if request["terminal"] is not None:
        os.environ.pop("COLUMNS", None)  # it would go before the terminal's own
        os.setsid()
        controlling = os.open(request["terminal"], os.O_RDWR)  # the first that is opened controls the session
        fcntl.ioctl(controlling, termios.TIOCSCTTY, 0)
        os.close(controlling)
    for descriptor, path in ((0, request["terminal"] or os.devnull), (1, request["stdout"]), (2, request["stderr"])):
        os.close(descriptor)
        if path == str(CLOSED):
            setattr(sys, _NAMES[descriptor], None)  # as Python itself has it then
        else:
            writes_alone = descriptor == 1 and request["stdout_has_reader"]
            opened = os.open(path, os.O_WRONLY if writes_alone else os.O_RDWR | os.O_CREAT, 0o600)
            if opened != descriptor:  # the lowest one that was free
                os.dup2(opened, descriptor)
                os.close(opened)
    sys.argv = ["tieredstore", *request["arguments"]]
    importlib.import_module("tieredstore.cli.app.entry").run()


def _main() -> None:
    for module in ("tieredstore.cli.app.main", *sys.argv[1:]):
        importlib.import_module(module)
    request = serve()
    if request is not None:
        become(request)


if __name__ == "__main__":
    _main()
