"""Readiness check of a server without any SDK."""

from __future__ import annotations

import http.client


def answers(port: int, path: str, *, statuses: frozenset[int] = frozenset({200})) -> bool:
    """Return True if a GET of ``path`` at this loopback port returns one of ``statuses``."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status in statuses
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
