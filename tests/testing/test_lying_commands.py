"""Commands on a lying server: each gives complete files and the right output, or one error that explains why not.

For each command, ``make test`` runs a sample of the server's lies, ``make soak`` all of them.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from tests.support.cli.cli_process import Result, tieredstore
from tests.support.faulty_server.azure import ACCOUNT
from tests.support.faulty_server.objects import Held
from tests.support.faulty_server.server import FaultyServer
from tests.support.faulty_server.service import Cloud, Step
from tests.support.faulty_server.way import Must, Way
from tests.support.faulty_server.ways import QUICK_WAYS, SLOW_WAYS, WAYS
from tests.support.records.disk_segments import write_segments
from tests.support.stores.faulty_stores import AZURE_KEY, PART_SIZES, SERVICES
from tieredstore.backends.cloud import store as cloud_store
from tieredstore.model import TopicIdPartition, Uuid
from tieredstore.process.retry import RetryPolicy
from tieredstore.testing.batches import Record, build_batch
from tieredstore.testing.segments import write_segment

SMALL = TopicIdPartition(Uuid(bytes([1] * 16)), "small", 0)
LARGE = TopicIdPartition(Uuid(bytes([2] * 16)), "large", 0)
CALL_TIMEOUT_MS = 20_000
SHORT_TIMEOUT_MS = 300


TAKEN, KEPT = "taken", "kept"
"""Folders that ``mirror`` copies segments to (TAKEN) and from (KEPT)."""

_PATIENT = "store.properties"
_HURRIED = "short.properties"


@dataclass(frozen=True)
class Command:
    """Command line. If it ``copies``, it starts with an empty bucket, otherwise with one that has all segments.

    ``lacks_manifest``: the manifest of the first small segment is missing. ``settings`` is the option that names the
    bucket; without it, the bucket is the first argument.
    """

    name: str
    arguments: Callable[[Path], tuple[object, ...]] = field(repr=False)
    copies: bool = False
    lacks_manifest: bool = False
    settings: str = "-c"


COMMANDS = (
    Command("upload", lambda folder: ("upload", folder / "small"), copies=True),
    Command("upload in parts", lambda folder: ("upload", folder / "large"), copies=True),
    Command("ls", lambda _: ("ls", "small")),
    Command("fetch", lambda _: ("fetch", "small", 0, 0)),
    Command("cat", lambda _: ("cat", "small")),
    Command("rm --segment", lambda _: ("rm", "small", "-p", 0, "--segment", 0, "--yes")),
    Command("rm", lambda _: ("rm", "small", "--yes")),
    Command("gc", lambda _: ("gc", "--yes"), lacks_manifest=True),
    Command("mirror from", lambda folder: ("mirror", folder / TAKEN, "small", "--parallel", 1)),
    Command(
        "mirror to",
        lambda folder: ("mirror", "--store", folder / KEPT, "small", "--parallel", 1),
        copies=True,
        settings="",
    ),
)


@dataclass
class CommandPlace:
    """Server, folder with logs and settings files, and each command's result on an honest server."""

    server: FaultyServer
    folder: Path
    full: dict[str, Held] = field(default_factory=dict[str, Held])
    honest: dict[str, Result] = field(default_factory=dict[str, Result])
    left: dict[str, dict[str, bytes]] = field(default_factory=dict[str, dict[str, bytes]])
    steps: dict[str, frozenset[Step]] = field(default_factory=dict[str, frozenset[Step]])

    @classmethod
    def prepared(cls, server: FaultyServer, folder: Path) -> CommandPlace:
        """Return a place where every command has run once against an honest server."""
        write_segments(folder / "small", 3, SMALL)
        size = PART_SIZES[server.service.cloud]
        for offset, value in enumerate((bytes(size), b"v")):
            batch = build_batch([Record(b"k", value, 1_000)], offset)
            write_segment(folder / "large", [batch], partition=LARGE, base_offset=offset)
        for name, timeout_ms in ((_PATIENT, CALL_TIMEOUT_MS), (_HURRIED, SHORT_TIMEOUT_MS)):
            settings = _settings(server, str(timeout_ms))
            (folder / name).write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        (folder / KEPT).mkdir()
        assert tieredstore("upload", "--store", folder / KEPT, folder / "small").code == 0
        place = cls(server, folder)
        for command in COMMANDS:
            result = place.run(command)
            assert result.code == 0, (command, result.stderr)
            place.honest[command.name] = result
            place.left[command.name] = place.objects()
            place.steps[command.name] = frozenset(server.steps())
            if command.name == "upload":
                place.full = dict(server.service.objects.by_key)
        return place

    def run(self, command: Command, way: Way | None = None, *, hurried: bool = False) -> Result:
        """Run a command on a fresh bucket; its server answers in this ``way``. If ``hurried``, use a short timeout."""
        self._begin(command)
        shutil.rmtree(self.folder / TAKEN, ignore_errors=True)
        (self.folder / TAKEN).mkdir()
        if way is not None:
            self.server.lie(way)
        program, *arguments = command.arguments(self.folder)
        settings = self.folder / (_HURRIED if hurried else _PATIENT)
        return tieredstore(program, *([command.settings] if command.settings else []), settings, *arguments)

    def before(self, command: Command) -> dict[str, bytes]:
        """Return the objects in the bucket when the command starts."""
        self._begin(command)
        return self.objects()

    def _begin(self, command: Command) -> None:
        self.server.forget()
        if not command.copies:
            self.server.service.objects.by_key.update(self.full)
        if command.lacks_manifest:
            del self.server.service.objects.by_key[min(key for key in self.full if key.endswith("manifest"))]

    def objects(self) -> dict[str, bytes]:
        """Return the bucket's objects, by key without the segment id, which is random."""
        held = self.server.service.objects.by_key
        return {_without_id(key): b"" if key.endswith("manifest") else value.data for key, value in held.items()}

    def bare_manifests(self) -> list[str]:
        """Return the manifests whose data is missing."""
        taken = self.folder / TAKEN
        held = {*self.server.service.objects.by_key, *(str(path.relative_to(taken)) for path in taken.rglob("*"))}
        stems = [key.removesuffix(".rsm-manifest") for key in held if key.endswith(".rsm-manifest")]
        return [stem for stem in stems if f"{stem}.log" not in held or f"{stem}.indexes" not in held]


def _without_id(key: str) -> str:
    folder, _, name = key.rpartition("/")
    return f"{folder}/{name[:20]}.{name.rpartition('.')[2]}"


def _settings(server: FaultyServer, timeout: str) -> dict[str, str]:
    part = str(PART_SIZES[server.service.cloud])
    of_cloud = {
        Cloud.S3: {
            "storage.backend.class": "s3",
            "storage.s3.bucket.name": server.service.bucket,
            "storage.s3.region": "us-east-1",
            "storage.s3.endpoint.url": server.url,
            "storage.s3.path.style.access.enabled": "true",
            "storage.s3.multipart.upload.part.size": part,
            "storage.s3.api.call.timeout": timeout,
            "storage.aws.access.key.id": "key",
            "storage.aws.secret.access.key": "secret",
        },
        Cloud.GCS: {
            "storage.backend.class": "gcs",
            "storage.gcs.bucket.name": server.service.bucket,
            "storage.gcs.endpoint.url": server.url,
            "storage.gcs.resumable.upload.chunk.size": part,
            "storage.gcs.api.call.timeout": timeout,
            "storage.gcs.credentials.default": "false",
        },
        Cloud.AZURE: {
            "storage.backend.class": "azure",
            "storage.azure.container.name": server.service.bucket,
            "storage.azure.account.name": ACCOUNT,
            "storage.azure.account.key": AZURE_KEY,
            "storage.azure.endpoint.url": f"{server.url}/{ACCOUNT}",
            "storage.azure.upload.block.size": part,
            "storage.azure.api.call.timeout": timeout,
        },
    }
    return {"chunk.size": "65536", **of_cloud[server.service.cloud]}


pytestmark = pytest.mark.slow

SAMPLE = 5
"""Number of quick lies that ``make test`` tries for a command, besides one lie that takes long."""
LONGEST_S = 60.0
TIMELESS = {"no dates", "no updates", "no times"}
"""Lies by which listings lack the ages of objects, so that commands must keep objects without a manifest."""


@pytest.fixture(scope="module", params=list(Cloud), ids=lambda cloud: cloud.value)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandPlace]:
    cloud: Cloud = request.param
    with pytest.MonkeyPatch.context() as patched, FaultyServer(SERVICES[cloud]()) as server:
        patched.setattr(cloud_store, "RetryPolicy", partial(RetryPolicy, sleep=lambda _: None))
        yield CommandPlace.prepared(server, tmp_path_factory.mktemp(cloud.value))


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_a_sample_of_lies_is_an_error_or_does_no_harm(place: CommandPlace, command: Command) -> None:
    draw = random.Random(f"{command.name} {place.server.service.cloud}")
    for ways, count in ((QUICK_WAYS, SAMPLE), (SLOW_WAYS, 1)):
        for way in draw.sample([way for way in ways if _meet(place, command, way)], count):
            _check(place, command, way)


@pytest.mark.soak
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_every_lie_is_an_error_or_does_no_harm(place: CommandPlace, way: Way) -> None:
    for command in COMMANDS:
        if _meet(place, command, way):
            _check(place, command, way)


def _meet(place: CommandPlace, command: Command, way: Way) -> bool:
    return place.server.service.cloud in way.clouds and not place.steps[command.name].isdisjoint(way.steps)


def _check(place: CommandPlace, command: Command, way: Way) -> None:
    began_s = time.monotonic()
    done = place.run(command, way, hurried=way in SLOW_WAYS and way.must is Must.UNAVAILABLE)
    took_s = time.monotonic() - began_s
    said = f"{command.name}, {way.name}: {done.code}, {done.stderr}"
    assert place.bare_manifests() == [], said
    assert "Traceback" not in done.stderr, said
    assert took_s < LONGEST_S, said
    if place.server.service.cloud is not Cloud.AZURE:  # a client cannot delete Azure's uncommitted blocks
        assert place.server.service.objects.uploads == {}, said
    if done.code == 0 and command.lacks_manifest and way.name in TIMELESS:
        assert place.objects() == place.before(command), said
    elif done.code == 0:
        # A lie about an absent object, such as a manifest before a copy, may be harmless.
        assert command.copies or done.stdout == place.honest[command.name].stdout, said
        assert place.objects() == place.left[command.name], said
    else:
        assert way.must is not Must.RIGHT, said
        assert way.must.error is not None, said
        assert done.code == way.must.error.exit_code, said
