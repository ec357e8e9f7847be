"""Finds the processes of a session that are connected to a port, from Linux's /proc."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_ESTABLISHED: Final = "01"


def is_connected(process: int, port: int) -> bool:
    """Return True if a running process is connected to this local port."""
    return bool(_sockets_to(port) & _sockets_of(process))


def processes_of(session: int, *, named: str) -> list[int]:
    """Return the processes of a session that have ``named`` among their arguments."""
    processes: list[int] = []
    for folder in _PROC.iterdir():
        try:
            # After the command in parentheses: state, parent, group, session.
            if (
                folder.name.isdigit()
                and int((folder / "stat").read_text().rpartition(")")[2].split()[3]) == session
                and named in (folder / "cmdline").read_text().split("\0")
            ):
                processes.append(int(folder.name))
        except (FileNotFoundError, ProcessLookupError):  # the process has ended
            continue
    return processes


def parent_of(process: int) -> int:
    """Return the parent of a process (or its adopter); -1 if the process has ended."""
    try:
        return int((_PROC / str(process) / "stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return -1


def _sockets_to(port: int) -> set[str]:
    connections = [line.split() for line in (_PROC / "net/tcp").read_text().splitlines()[1:]]
    return {
        f"socket:[{fields[9]}]"
        for fields in connections
        if fields[3] == _ESTABLISHED and int(fields[2].rpartition(":")[2], 16) == port
    }


def _sockets_of(process: int) -> set[str]:
    links = set[str]()
    try:
        for link in (_PROC / str(process) / "fd").iterdir():
            links.add(str(link.readlink()))
    except (FileNotFoundError, ProcessLookupError):
        pass
    return links
