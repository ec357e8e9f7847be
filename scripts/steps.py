"""Shows the progress of long setup steps: their number, current action and duration."""

from __future__ import annotations

import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

_TERMINAL_EVERY_S: Final = 1.0
# Files and CI logs keep every line, so print fewer lines there than on a terminal.
_LOG_EVERY_S: Final = 15.0
_LINES_OF_A_FAILURE: Final = 40
_WIDTH: Final = 110


def _say_nothing(_line: str) -> None:
    """Report nothing, for commands whose output matters only on failure."""


class SetupError(Exception):
    """A failed setup step. The message is one sentence with the remedy."""


class Step:
    """A context manager that prints a step's label (``1/4 …``), then its status and seconds at intervals, then its
    duration."""

    def __init__(self, label: str, *, log_every_s: float = _LOG_EVERY_S) -> None:
        self.status = ""
        self._label, self._log_every_s = label, log_every_s
        self._started = 0.0
        self._ended = threading.Event()
        self._ticker = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> Self:
        self._started = time.monotonic()
        print(self._label, flush=True)
        self._ticker.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._ticker.join()
        if sys.stdout.isatty():
            print(f"\r{'':{_WIDTH}}\r", end="")
        if kind is None:
            print(f"    done in {self._seconds()} s" + (f": {self.status}" if self.status else ""), flush=True)

    def run(
        self,
        command: Sequence[str | Path],
        describe: Callable[[str], str | None] = _say_nothing,
        *,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:
        """Run ``command`` in ``folder``; ``describe`` maps an output line to a status, or to None to keep the last
        status.

        On failure, print the end of the command's output and raise SetupError.
        """
        lines: list[str] = []
        with subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environment,
            cwd=folder,
        ) as process:
            for line in process.stdout or ():
                lines.append(line)
                self.status = describe(line) or self.status
        if process.returncode:
            print("\n" + "".join(lines[-_LINES_OF_A_FAILURE:]), file=sys.stderr)
            raise SetupError(f"this failed, and the lines above say why: {shlex.join(map(str, command))}")

    def _seconds(self) -> int:
        return round(time.monotonic() - self._started)

    def _tick(self) -> None:
        terminal = sys.stdout.isatty()
        while not self._ended.wait(_TERMINAL_EVERY_S if terminal else self._log_every_s):
            line = f"    {self._seconds()} s {self.status}"[:_WIDTH]
            print(f"\r{line:{_WIDTH}}" if terminal else line, end="" if terminal else "\n", flush=True)


def numbered(labels: Iterable[str], *, log_every_s: float = _LOG_EVERY_S) -> list[Step]:
    """Return the steps of one setup, with their numbers in the labels: ``1/3 …``. In a log, a step prints its status
    every ``log_every_s``."""
    every = list(labels)
    return [Step(f"{number}/{len(every)} {label}", log_every_s=log_every_s) for number, label in enumerate(every, 1)]


def run_main(main: Callable[[], None]) -> None:
    """Run a script's ``main``. If it raises SetupError, print the error's sentence and exit with code 1."""
    try:
        main()
    except SetupError as error:
        sys.exit(f"tieredstore: {error}")
