"""Connections to a port, and the processes that have them, from Linux's /proc."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_ESTABLISHED: Final = "01"


def is_connected(process: int, port: int) -> bool:
    """Return True if a running process is connected to this local port."""
    return bool(_sockets_to(port) & _sockets_of(process))


def break_connections(port: int) -> int:
    """Break this process's connections to a local port, like a failing network; return their number."""
    ends, broken = _sockets_to(port), 0
    for link in (_PROC / "self/fd").iterdir():
        with suppress(OSError):  # closed by another thread
            if str(link.readlink()) in ends:
                with socket.socket(fileno=os.dup(int(link.name))) as end:
                    end.shutdown(socket.SHUT_RDWR)
                broken += 1
    return broken


def processes_of(session: int, *, named: str) -> list[int]:
    """Return the processes of a session that have ``named`` among their arguments."""
    processes: list[int] = []
    for folder in _PROC.iterdir():
        try:
            # The fields after the command in parentheses are state, parent, group and session.
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
    """Return the current parent of a process; -1 if the process has ended."""
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
