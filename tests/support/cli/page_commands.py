"""Commands and programs of docs pages, as forks of a process that has imported everything.

They are forks because starting Python would take most of their time. The shell finds a ``tieredstore`` and a
``python`` that hand their arguments and open files over to that process.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import socket
import subprocess
import sys
import warnings
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import tieredstore
from tests.support.paths import REPOSITORY

_LIBRARIES: Final = (
    "Crypto.PublicKey.RSA",
    "confluent_kafka.admin",
    "cryptography.hazmat.primitives.ciphers.aead",
    "duckdb",
    "pyarrow.compute",
    "pyarrow.dataset",
    "pyarrow.parquet",
)
_STUB: Final = """\
#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as door:
    door.connect({door!r})
    request = json.dumps([{name!r}, sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(door, [len(request).to_bytes(4, "big")], [0, 1, 2])
    door.sendall(request)
    sys.exit(int(door.recv(8)))
"""


@contextmanager
def forked_commands_of_pages(environment: Mapping[str, str]) -> Generator[Path]:
    """Yield a folder for PATH; its commands work until the end of the block."""
    with TemporaryDirectory(prefix="tieredstore-") as folder:  # a socket's path must be short
        door = Path(folder, "door")
        for name in ("tieredstore", "python"):
            stub = Path(folder, name)
            stub.write_text(_STUB.format(python=sys.executable, door=str(door), name=name))
            stub.chmod(0o755)
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(door))
            listening.listen()
            begin = f"from {__name__} import serve\nserve({listening.fileno()})"
            command = [sys.executable, "-c", begin]
            with subprocess.Popen(
                command, cwd=REPOSITORY, env=dict(environment), pass_fds=[listening.fileno()]
            ) as process:
                try:
                    yield Path(folder)
                finally:
                    process.kill()


def serve(descriptor: int) -> None:
    """Fork a child for each request. The child forks the command, and reports how the command has ended."""
    for module in _LIBRARIES:
        importlib.import_module(module)
    for found in pkgutil.walk_packages(tieredstore.__path__, "tieredstore."):
        if not found.name.startswith(("tieredstore.spark", "tieredstore.polars", "tieredstore.cli.__main__")):
            importlib.import_module(found.name)
    gc.freeze()  # a garbage collection in a child would copy the parent's memory
    with socket.socket(fileno=descriptor) as listening:
        while True:
            connection, _ = listening.accept()
            with connection:
                if os.fork():
                    continue
                length, files, _, _ = socket.recv_fds(connection, 4, 3)
                request = b""
                while len(request) < int.from_bytes(length, "big"):
                    request += connection.recv(1 << 16)
                if command := os.fork():
                    _, status = os.waitpid(command, 0)
                    code = os.waitstatus_to_exitcode(status)
                    connection.sendall(b"%d" % (code if code >= 0 else 128 - code))
                    os._exit(0)
            break  # this process becomes the command
    name, arguments, folder, environment = json.loads(request)
    _become(name, arguments, folder, environment, files)


def _become(name: str, arguments: list[str], folder: str, environment: dict[str, str], files: list[int]) -> None:
    for descriptor, file in enumerate(files):
        os.dup2(file, descriptor)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    if name == "tieredstore":
        sys.argv = [name, *arguments]
        importlib.import_module("tieredstore.cli.app.entry").run()
    assert arguments[:3] == ["-W", "error", "-c"]
    warnings.simplefilter("error")
    sys.argv = ["-c", *arguments[4:]]
    main: Any = sys.modules["__main__"]
    exec(compile(arguments[3], "<string>", "exec"), vars(main))
