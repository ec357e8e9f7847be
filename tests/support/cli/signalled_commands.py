"""Commands on a store that answers byte by byte: the request that each waits for, and how a signal ends it there."""

from __future__ import annotations

import contextlib
import itertools
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.cli.cli_process import TXN, tieredstore
from tests.support.cli.forked_commands import Ended, ForkedCommands, Running
from tests.support.faulty_server.azure import ACCOUNT
from tests.support.faulty_server.server import FaultyServer
from tests.support.faulty_server.service import Cloud, Service, Step
from tests.support.faulty_server.way import Exchange, Must, Way
from tests.support.faulty_server.wire import Answer, Pause, Piece
from tests.support.records.disk_segments import write_segments
from tests.support.records.small_segments import KEYS
from tests.support.stores.faulty_stores import AZURE_KEY, PART_SIZES, SERVICES
from tests.support.waiting import wait_until
from tieredstore.process.interruption import TAKING_BACK_S
from tieredstore.testing.segments import build_segment

SOON_S: Final = 60.0
"""Seconds to wait for a command's end. Three should suffice, but a busy machine may give it less processor time."""

_DRIP_S = 0.2


@dataclass(frozen=True)
class Place:
    """Place where a command waits: for answers to requests of this step, on keys that contain ``part_of_key``.

    With ``honest_after_s`` the server executes and answers the request after that delay.
    """

    step: Step
    part_of_key: str = ""
    honest_after_s: float | None = None

    def __str__(self) -> str:
        return f"{self.step.value} {self.part_of_key}".strip()

    def way(self) -> Way:
        """Return the fault for the server: it answers this place's requests late, or byte by byte without end, and
        other requests honestly.
        """

        def answer(exchange: Exchange) -> Answer:
            if self.part_of_key not in exchange.request.target:
                return exchange.honest()
            return _dripping(exchange) if self.honest_after_s is None else _late(exchange, self.honest_after_s)

        return Way(f"{self} drips", frozenset(Cloud), frozenset({self.step}), Must.UNAVAILABLE, answer)

    def is_reached(self, server: FaultyServer) -> bool:
        """Return True if the server has got a request of this place, so that the command waits there."""
        return any(asked.step is self.step and self.part_of_key in asked.request.target for asked in list(server.asked))


def _late(exchange: Exchange, seconds: float) -> Iterator[Piece]:
    yield Pause(seconds)
    yield from exchange.honest().pieces(with_body=True)


def _dripping(exchange: Exchange) -> Iterator[Piece]:
    """Send half of a GET's body at once, then the rest byte by byte. Answer other requests by an endless header."""
    if exchange.step is Step.READ:
        reply = exchange.honest()
        yield reply.head() + reply.body[: len(reply.body) // 2]
        rest = reply.body[len(reply.body) // 2 :]
        pieces: Iterator[bytes] = (rest[place : place + 1] for place in range(len(rest)))
    else:
        yield b"HTTP/1.1 200 OK\r\nX-Drip: "
        pieces = iter(lambda: b"x", b"")
    for piece in pieces:
        yield Pause(_DRIP_S)
        yield piece


def write_cloud_settings(folder: Path, server: FaultyServer, *, active_key: str = "key1") -> Path:
    """Write a settings file for the server's bucket, encrypted, with the smallest possible parts."""
    bucket, cloud = server.service.bucket, server.service.cloud
    part = str(PART_SIZES[cloud])
    texts = {
        Cloud.S3: {
            "storage.backend.class": "s3",
            "storage.s3.bucket.name": bucket,
            "storage.s3.region": "us-east-1",
            "storage.s3.endpoint.url": server.url,
            "storage.s3.path.style.access.enabled": "true",
            "storage.aws.access.key.id": "key",
            "storage.aws.secret.access.key": "secret",
            "storage.s3.multipart.upload.part.size": part,
        },
        Cloud.GCS: {
            "storage.backend.class": "gcs",
            "storage.gcs.bucket.name": bucket,
            "storage.gcs.endpoint.url": server.url,
            "storage.gcs.credentials.default": "false",
            "storage.gcs.resumable.upload.chunk.size": part,
        },
        Cloud.AZURE: {
            "storage.backend.class": "azure",
            "storage.azure.container.name": bucket,
            "storage.azure.account.name": ACCOUNT,
            "storage.azure.account.key": AZURE_KEY,
            "storage.azure.endpoint.url": f"{server.url}/{ACCOUNT}",
            "storage.azure.upload.block.size": part,
        },
    }[cloud]
    keys = {
        "encryption.enabled": "true",
        "encryption.key.pair.id": active_key,
        "encryption.key.pairs": "key1,key2",
        **{
            f"encryption.key.pairs.{name}.{half}.key.file": str(KEYS / f"{name}.{half}.pem")
            for name in ("key1", "key2")
            for half in ("public", "private")
        },
    }
    path = folder / f"{cloud.value}.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in {**texts, **keys, "chunk.size": "65536"}.items()))
    return path


@dataclass(frozen=True)
class Case:
    """Command, the place where it waits, and the signal that it gets there."""

    command: str
    place: Place
    signum: signal.Signals
    also_drips: Place | None = None


class Stage:
    """One cloud's bucket, and commands on it."""

    def __init__(self, cloud: Cloud, folder: Path, commands: ForkedCommands) -> None:
        self.service: Service = SERVICES[cloud]()
        self.log_dir = folder / "logs"
        self._folder = folder
        self._commands = commands
        self._numbers = itertools.count()
        self.small = folder / "small"
        build_segment(self.log_dir, 6 << 20)
        write_segments(self.small, 2)
        with FaultyServer(self.service) as honest:
            assert tieredstore("upload", "-c", write_cloud_settings(folder, honest), TXN).code == 0

    def run(
        self, cases: Sequence[Case], *, taking_back_s: float = TAKING_BACK_S
    ) -> Iterator[tuple[Case, Ended | None, Path]]:
        """Run all cases concurrently; yield how each ended, and the folder of its ``FILE``."""
        with contextlib.ExitStack() as stack:
            started = [self._started(case, stack, taking_back_s) for case in cases]
            starting = list(started)

            def send_to_waiting() -> bool:
                """Send each signal at once, because a command does not wait long for a whole answer."""
                for each in [each for each in starting if each[0].place.is_reached(each[1])]:
                    each[2].send(each[0].signum)
                    starting.remove(each)
                return not starting

            wait_until(send_to_waiting, what=starting)
            for case, _, running, folder in started:
                yield case, running.wait(SOON_S), folder

    def _started(
        self, case: Case, stack: contextlib.ExitStack, taking_back_s: float
    ) -> tuple[Case, FaultyServer, Running, Path]:
        server = stack.enter_context(FaultyServer(self.service))
        server.lie(*(place.way() for place in (case.place, case.also_drips) if place is not None))
        folder = self._folder / f"case-{next(self._numbers)}"
        folder.mkdir()
        settings = write_cloud_settings(folder, server, active_key="key2" if "rotate" in case.command else "key1")
        taken = self._folder / f"taken-{folder.name}"
        taken.mkdir()
        words = {
            "FILE": folder / "file", "LOGS": self.log_dir, "SMALL": self.small, "TAKEN": taken,
            "ROWS": folder / "rows.parquet", "SQL": "SELECT count(value) FROM txn",
        }  # fmt: skip
        arguments = [str(words.get(word, word)) for word in case.command.split()]
        running = self._commands.start(*arguments, settings=settings, taking_back_s=taking_back_s)
        return case, server, running, folder
