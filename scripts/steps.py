"""Long steps of a set-up, told as they go: which of how many, what it does now, for how long."""

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
# Into a file or CI's log every line stays: fewer of them.
_LOG_EVERY_S: Final = 15.0
_LINES_OF_A_FAILURE: Final = 40
_WIDTH: Final = 110


def _say_nothing(_line: str) -> None:
    """For commands whose output is of interest only if they fail."""


class SetupError(Exception):
    """One sentence: what cannot be set up, and the way out."""


class Step:
    """A context manager: prints ``1/4 what``, then now and then ``status`` with the seconds, and at last how long."""

    def __init__(self, label: str) -> None:
        self.status = ""
        self._label = label
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
        """Run ``command`` in ``folder``; ``describe`` makes the status of a line that it prints, None to keep the last.

        If it fails: SetupError, after the end of what it printed.
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
        while not self._ended.wait(_TERMINAL_EVERY_S if terminal else _LOG_EVERY_S):
            line = f"    {self._seconds()} s {self.status}"[:_WIDTH]
            print(f"\r{line:{_WIDTH}}" if terminal else line, end="" if terminal else "\n", flush=True)


def numbered(labels: Iterable[str]) -> list[Step]:
    """The steps of one set-up: ``1/3 …``."""
    every = list(labels)
    return [Step(f"{number}/{len(every)} {label}") for number, label in enumerate(every, 1)]


def run_main(main: Callable[[], None]) -> None:
    """Run a script's ``main``: a SetupError ends it with its sentence and code 1."""
    try:
        main()
    except SetupError as error:
        sys.exit(f"tieredstore: {error}")
