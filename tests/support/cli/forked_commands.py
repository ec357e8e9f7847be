"""Commands in processes forked from a parent that has already imported everything, because tests of signals need many.

The parent runs :func:`run` with the modules as arguments, and reads requests from stdin, one per line.
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
from tests.support.paths import COVERAGE_VARIABLE
from tieredstore.process import interruption
from tieredstore.process.interruption import TAKING_BACK_S, Interruption

CLOSED: Final = Path("closed")
"""Path that means a closed stdout or stderr."""

_NAMES: Final = ("stdin", "stdout", "stderr")


@dataclass(frozen=True)
class Ended:
    """Finished command; a negative code is the signal that killed it."""

    code: int
    stdout: bytes
    stderr: str


class Running:
    """Running command; its output is collected in files unless the test passed a stdout."""

    def __init__(self, parent: ForkedCommands, process: int, stdout: Path, stderr: Path) -> None:
        self.process = process
        self._parent = parent
        self._stdout = stdout
        self._stderr = stderr

    def send(self, signum: signal.Signals) -> None:
        os.kill(self.process, signum)

    def is_asleep(self) -> bool:
        """Return True if the main thread waits in the kernel, for example for a key."""
        return Path(f"/proc/{self.process}/task/{self.process}/stat").read_text().rpartition(")")[2].split()[0] == "S"

    def wait(self, timeout_s: float) -> Ended | None:
        """Wait until the command ends; on timeout, kill it and return None."""
        code = self._parent.ask({"wait": self.process, "timeout_s": timeout_s})["code"]
        if code is None:
            return None
        stdout, stderr = (path.read_bytes() if path.is_file() else b"" for path in (self._stdout, self._stderr))
        return Ended(code, stdout, stderr.decode())


class ForkedCommands:
    """Context manager that starts commands. ``modules`` are imported once, in the parent.

    With ``is_measured``, the commands count for the run's coverage, if the run measures it.
    """

    def __init__(self, folder: Path, modules: Sequence[str] = (), *, is_measured: bool = False) -> None:
        self._folder = folder
        self._count = 0
        begin = f"from {__name__} import run\nrun()"
        if is_measured and COVERAGE_VARIABLE in os.environ:
            begin = f"import tests.support.measured_process\n{begin}"
        self._parent = subprocess.Popen(
            [sys.executable, "-c", begin, *modules],
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
        """Run a command; ``stdout`` and ``stderr`` may be a device, a named pipe or CLOSED.

        ``stdout_has_reader`` says that another process reads the pipe ``stdout``. The pipe then breaks when its reader
        closes it. Without this flag, the pipe never breaks. ``terminal`` becomes the controlling terminal, and replaces
        each stream that is not given. ``environment`` is added to the parent's. ``taking_back_s``: time limit for the
        rollback after a signal.
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
        """Send one request and return its answer."""
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        self._parent.stdin.write(json.dumps(request) + "\n")
        self._parent.stdin.flush()
        answer: dict[str, Any] = json.loads(self._parent.stdout.readline())
        return answer


def serve() -> Mapping[str, Any] | None:
    """In the parent, answer requests until the end of input, then return None. In a forked child, return the request
    that the child must carry out.
    """
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
    """Run the command in a child as the console script does, but with a rollback time that suits a busy machine."""
    untyped: Any = interruption
    untyped.TAKING_BACK_S, Interruption.last_act_s = request["taking_back_s"], 60.0
    # Reset the signals, because a child ignores the signals that its parent ignores. A shell's background process
    # ignores interrupts. A process under nohup ignores hangups.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler if request["interruptible"] else signal.SIG_IGN)
    os.environ.update(request["environment"])
    if request["terminal"] is not None:
        os.environ.pop("COLUMNS", None)  # it would override the terminal's width
        os.setsid()
        # The first terminal opened becomes the session's controlling terminal.
        controlling = os.open(request["terminal"], os.O_RDWR)
        fcntl.ioctl(controlling, termios.TIOCSCTTY, 0)
        os.close(controlling)
    for descriptor, path in ((0, request["terminal"] or os.devnull), (1, request["stdout"]), (2, request["stderr"])):
        os.close(descriptor)
        if path == str(CLOSED):
            setattr(sys, _NAMES[descriptor], None)  # as Python does for a closed descriptor
        else:
            writes_alone = descriptor == 1 and request["stdout_has_reader"]
            opened = os.open(path, os.O_WRONLY if writes_alone else os.O_RDWR | os.O_CREAT, 0o600)
            if opened != descriptor:  # open returns the lowest free descriptor
                os.dup2(opened, descriptor)
                os.close(opened)
    sys.argv = ["tieredstore", *request["arguments"]]
    importlib.import_module("tieredstore.cli.app.entry").run()


def run() -> None:
    """Serve requests as the parent; in a child, become the command."""
    for module in ("tieredstore.cli.app.main", *sys.argv[1:]):
        importlib.import_module(module)
    request = serve()
    if request is not None:
        become(request)
