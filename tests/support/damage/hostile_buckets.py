"""Buckets damaged by an attacker with write access: one hostile segment next to an honest one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from tests.support.cli.cli_process import write_settings
from tests.support.records.small_segments import ENC, ZSTD
from tieredstore.config import load_settings
from tieredstore.model import TopicIdPartition, Uuid
from tieredstore.remote import RemoteStorageManager
from tieredstore.testing.batches import Record, build_batch
from tieredstore.testing.segments import write_segment

VICTIM: Final = TopicIdPartition(Uuid(bytes(range(16))), "victim", 0)
HONEST: Final = TopicIdPartition(Uuid(bytes(range(1, 17))), "honest", 0)
CHUNK_SIZE: Final = 8192
MODES: Final[dict[str, dict[str, str]]] = {"plain": {}, "zstd": ZSTD, "enc": ENC}

Codes: TypeAlias = tuple[int, int, int, int]
"""Expected exit codes of ``ls``, ``inspect``, ``fetch`` and ``cat``. If 0, the last two must give the right bytes."""

SAME: Final[Codes] = (0, 0, 0, 0)
REFUSED: Final[Codes] = (4, 4, 4, 3)
"""Codes for an invalid manifest: no catalog lists the segment, so `cat` finds no topic."""


@dataclass(frozen=True)
class HostileBucket:
    """Folder with ``store.properties`` and ``store``, which holds a segment of ``victim`` and one of ``honest``."""

    folder: Path

    @property
    def settings(self) -> Path:
        return self.folder / "store.properties"

    def path(self, suffix: str, topic: str = "victim") -> Path:
        (path,) = (self.folder / "store").glob(f"{topic}-*/0/*.{suffix}")
        return path

    def manifest(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.path("rsm-manifest").read_bytes())
        return document

    def replace_text(self, old: str, new: str) -> None:
        """Replace one occurrence of ``old`` in the victim's manifest by ``new``; non-ASCII text is written as UTF-8."""
        path = self.path("rsm-manifest")
        raw = path.read_bytes()
        assert old.encode() in raw
        path.write_bytes(raw.replace(old.encode(), new.encode("utf-8", "surrogatepass"), 1))

    def patch(self, suffix: str, position: int, content: bytes) -> None:
        """Overwrite bytes of one of the victim's objects; a negative position counts from the end."""
        path = self.path(suffix)
        raw = bytearray(path.read_bytes())
        start = position if position >= 0 else len(raw) + position
        raw[start : start + len(content)] = content
        path.write_bytes(raw)


AS_STORED: Final[Codes] = (0, 0, 0, 4)
"""Codes for damaged records: `fetch` gives the stored bytes, but readers of records raise an error."""

Change: TypeAlias = Callable[[HostileBucket], None]


@dataclass(frozen=True)
class Case:
    """One kind of damage to a bucket of this ``mode``, the expected exit codes, and ``words`` in the errors.

    ``cat`` has the arguments of that command. ``calls_of_a_byte`` limits the function calls per stored byte. An honest
    segment needs thousandths of a call. A case may need more if each byte is a chunk, or part of a name.
    """

    name: str
    change: Change
    codes: Codes
    words: str = ""
    mode: str = "plain"
    cat: tuple[str, ...] = ("victim",)
    calls_of_a_byte: int = 6

    def __str__(self) -> str:
        return self.name


def make_bucket(folder: Path, mode: str) -> HostileBucket:
    """Create the undamaged bucket."""
    settings = write_settings(folder, MODES[mode], chunk_size=CHUNK_SIZE)
    with RemoteStorageManager(load_settings(settings)) as manager:
        for partition in (VICTIM, HONEST):
            segment = write_segment(folder / "logs", _batches(partition.topic), partition=partition)
            manager.copy_log_segment_data(
                segment.to_metadata(Uuid(bytes([7]) * 16), event_timestamp_ms=1), segment.files
            )
    return HostileBucket(folder)


def _batches(topic: str) -> list[bytes]:
    records = [Record(value=f"{topic} {n} ".encode() * 8, timestamp_ms=1_000 + n) for n in range(250)]
    return [build_batch(records[first : first + 50], first) for first in range(0, 250, 50)]


def copy_of(bucket: HostileBucket, folder: Path) -> HostileBucket:
    """Copy the bucket, so that a test can damage the copy."""
    shutil.copytree(bucket.folder / "store", folder / "store", symlinks=True)
    shutil.copy(bucket.settings, folder)
    return HostileBucket(folder)


def field(path: str, value: object) -> Change:
    """Return a change of one field of the manifest."""

    def change(bucket: HostileBucket) -> None:
        document = bucket.manifest()
        *folders, name = path.split(".")
        inner = document
        for folder in folders:
            inner = inner[folder]
        inner[name] = value
        bucket.path("rsm-manifest").write_text(json.dumps(document, separators=(",", ":")))

    return change


def without(path: str) -> Change:
    """Return a change that removes one field of the manifest."""

    def change(bucket: HostileBucket) -> None:
        document = bucket.manifest()
        *folders, name = path.split(".")
        inner = document
        for folder in folders:
            inner = inner[folder]
        del inner[name]
        bucket.path("rsm-manifest").write_text(json.dumps(document, separators=(",", ":")))

    return change


def text(old: str, new: str) -> Change:
    """Return a change of the manifest's text, for texts that no JSON library would write."""
    return lambda bucket: bucket.replace_text(old, new)


def content(suffix: str, make: Callable[[bytes], bytes]) -> Change:
    """Return a change of one object's content, computed from the old content."""

    def change(bucket: HostileBucket) -> None:
        path = bucket.path(suffix)
        path.write_bytes(make(path.read_bytes()))

    return change
