"""CPU time of a process and of all that it started, by what /proc says."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class ProcessTree:
    """The process ``root`` with its descendants. Those that have ended count where their parent waited for them."""

    root: int

    def cpu_seconds(self) -> tuple[float, float]:
        """Of the root itself, and of all others."""
        processes = _processes()
        tree = {self.root}
        while more := {pid for pid, process in processes.items() if process.parent in tree} - tree:
            tree |= more
        total = sum(processes[pid].own + processes[pid].waited_for for pid in tree if pid in processes)
        own = processes[self.root].own
        return own, total - own

    def cpu_seconds_of(self, job: Callable[[], object]) -> tuple[float, float]:
        """What a job takes of both."""
        own, others = self.cpu_seconds()
        job()
        own_after, others_after = self.cpu_seconds()
        return own_after - own, others_after - others


@dataclass(frozen=True, slots=True)
class _Process:
    parent: int
    own: float
    waited_for: float


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
        return None  # it has just ended
    fields = text.rpartition(")")[2].split()  # its name may have spaces and parentheses
    user, system, waited_user, waited_system = (int(field) / _TICKS for field in fields[11:15])
    return _Process(int(fields[1]), user + system, waited_user + waited_system)
