"""CPU time of a process and its descendants, from /proc."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class ProcessTree:
    """The process ``root`` with its descendants.

    So that the sums never decrease, ended processes count too. A process counts with its full time if its parent waited
    for it, otherwise with its time at the last sample.
    """

    root: int
    _seen: dict[tuple[int, int], _Process] = field(default_factory=dict["tuple[int, int]", "_Process"])
    _lost: float = 0.0

    def cpu_seconds(self) -> tuple[float, float]:
        """Return the CPU seconds of the root, and of all other processes."""
        processes = _processes()
        tree = {self.root}
        while more := {pid for pid, process in processes.items() if process.parent in tree} - tree:
            tree |= more
        now = {(pid, process.started): process for pid in tree if (process := processes.get(pid)) is not None}
        gone = [process for key, process in self._seen.items() if key not in now]
        if gone:
            # If a living parent has waited for an ended process since the last sample, the parent's time now includes
            # the process's time. Do not count it twice.
            before = sum(process.waited_for for key, process in self._seen.items() if key in now)
            waited_for = sum(process.waited_for for process in now.values()) - before
            self._lost += max(0.0, sum(process.total for process in gone) - waited_for)
        self._seen = now
        own = processes[self.root].own
        return own, sum(process.total for process in now.values()) + self._lost - own

    def cpu_seconds_of(self, job: Callable[[], object]) -> tuple[float, float]:
        """Return the CPU seconds that a job takes: those of the root, and those of all other processes."""
        own, others = self.cpu_seconds()
        job()
        own_after, others_after = self.cpu_seconds()
        return own_after - own, others_after - others


@dataclass(frozen=True, slots=True)
class _Process:
    parent: int
    started: int
    own: float
    waited_for: float

    @property
    def total(self) -> float:
        return self.own + self.waited_for


def _processes() -> dict[int, _Process]:
    processes: dict[int, _Process] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (process := _process(folder)) is not None:
            processes[int(folder.name)] = process
    return processes


def _process(folder: Path) -> _Process | None:
    try:
        text = (folder / "stat").read_text()
    except OSError:
        return None  # the process has just ended
    fields = text.rpartition(")")[2].split()  # the process's name may contain spaces and parentheses
    user, system, waited_user, waited_system = (int(field) / _TICKS for field in fields[11:15])
    return _Process(int(fields[1]), int(fields[19]), user + system, waited_user + waited_system)
