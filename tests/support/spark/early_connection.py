"""Python interpreter of Spark's workers in the tests: it connects to the JVM first, and then runs the slow imports.

Spark gives up on a worker that has not connected within ten seconds; no setting changes this. On a busy machine,
importing PySpark alone takes longer. ``worker_python`` writes a program that Spark starts as its Python. The program
runs ``python -m tests.support.spark.early_connection`` with Spark's arguments.
"""

from __future__ import annotations

import os
import runpy
import socket
import sys
from pathlib import Path
from typing import Any, Final

_PORT: Final = "PYTHON_WORKER_FACTORY_PORT"
_SECRET: Final = "PYTHON_WORKER_FACTORY_SECRET"
_PATIENCE_S: Final = 300.0


def worker_python(folder: Path) -> Path:
    """Write a program into this folder. Spark starts it as its workers' Python, and it connects early."""
    program = folder / "python"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {__name__} "$@"\n')
    program.chmod(0o755)
    return program


def connected(port: int, secret: str) -> socket.socket:
    """Return a connection authenticated to the JVM, like ``pyspark.util.local_connect_and_auth``."""
    connection = socket.create_connection(("127.0.0.1", port), _PATIENCE_S)
    secret_bytes = secret.encode()
    connection.sendall(len(secret_bytes).to_bytes(4, "big") + secret_bytes)
    answer = b""
    while len(answer) < 6:
        piece = connection.recv(6 - len(answer))
        assert piece, "the JVM has closed the connection"
        answer += piece
    assert answer == b"\0\0\0\2ok", answer
    return connection


def main() -> None:
    """Connect if Spark starts this process as a worker; then do what Python itself does with these arguments."""
    if sys.argv[1:2] != ["-m"] or _PORT not in os.environ:
        os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
    connection = connected(int(os.environ[_PORT]), os.environ[_SECRET])
    from pyspark import util  # noqa: PLC0415  this import is slow

    untyped: Any = util
    connect = untyped.local_connect_and_auth
    unused = [connection]

    def local_connect_and_auth(place: object, secret: str | None) -> tuple[Any, socket.socket]:
        if unused and place == int(os.environ[_PORT]):
            return connection.makefile("rwb", int(os.environ.get("SPARK_BUFFER_SIZE", "65536"))), unused.pop()
        answer: tuple[Any, socket.socket] = connect(place, secret)
        return answer

    untyped.local_connect_and_auth = local_connect_and_auth
    del sys.argv[:2]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
