"""What a pipeline commits: windows of offsets and the files that hold them, as values and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Literal, Self, TypeAlias, TypeVar, cast, get_args

from tieredstore.backends.base import Prepared
from tieredstore.errors import CommitLogCorrupt, StoreError
from tieredstore.limits import MAX_INT64

FORMAT: Final = 1
EntryKind: TypeAlias = Literal[
    "begin", "batch", "rewrite", "published", "redrive", "finalize", "take-over", "seal", "drop",
    "backfill", "replacing", "replaced",
]  # fmt: skip
"""``begin``: a driver takes over, and says where partitions begin that are new to the log; ``batch``: windows were
written; ``rewrite``: those of the entry before, once more, since the store had dropped what was prepared and other
bytes came out; ``published``: all files of the entries before it were seen, so that none of them that is gone later is
written again; ``redrive``: messages that had been put aside were parsed again; ``finalize``: directories whose time is
over are said to be complete. The first of a log may be ``take-over``: it goes on where another generation was sealed.
``seal`` and ``drop`` end a log. ``backfill``: the windows are to be written, from their starts up to their stops, and
none is yet; in the log of the generation whose files give way to these: ``replacing`` before anything of it goes, and
``replaced`` with the windows whose files are deleted."""

Part = TypeVar("Part")


@dataclass(frozen=True, slots=True)
class OutputFile:
    """One file of a window. ``kind``: ``data``, ``sidecar`` (what a format cannot say) or ``quarantine``.

    Offsets are those of its records, the last one inclusive; times in ms since the epoch, -1 without records.
    """

    kind: str
    key: str
    size: int
    sha256: str
    first_offset: int
    last_offset: int
    records: int
    min_timestamp: int
    max_timestamp: int
    prepared: Prepared


@dataclass(frozen=True, slots=True)
class WrittenWindow:
    """A window (``start`` up to ``stop``, half-open) of one life of a partition, all of it filed or put aside."""

    topic: str
    topic_id: str
    partition: int
    start: int
    stop: int
    records: int
    filtered: int
    quarantined: int
    files: tuple[OutputFile, ...]
    read_bytes: int = -1
    """Of the keys and values that were read; -1 where that is not known."""
    leader_epoch: int = -1
    """That of what lies before ``stop``, or a later one; -1 where that is not known."""

    @property
    def where(self) -> tuple[str, int]:
        """Topic and partition."""
        return self.topic, self.partition

    @property
    def where_in_life(self) -> tuple[str, str, int]:
        """The same with the topic's id."""
        return self.topic, self.topic_id, self.partition

    @property
    def data_files(self) -> list[OutputFile]:
        """Those that hold records, without those beside them and without bad messages."""
        return [file for file in self.files if file.kind == "data"]

    @property
    def max_timestamp(self) -> int:
        """The latest time of its records, -1 without any."""
        return max((file.max_timestamp for file in self.files), default=-1)


@dataclass(frozen=True, slots=True)
class Entry:
    """One object of the commit log. ``writer`` is the id of the driver that wrote it."""

    number: int
    kind: EntryKind
    writer: str
    fingerprint: str
    windows: tuple[WrittenWindow, ...] = ()
    removed: tuple[str, ...] = ()
    """Keys of files that are deleted once those of the windows are published."""
    other: int = -1
    """The generation that goes on (``seal``), went before (``take-over``), gives way (``backfill``), or to which this
    one gives way (``replacing``, ``replaced``), or that put the messages aside (``redrive``, of one that was taken
    over); otherwise -1."""
    directories: tuple[str, ...] = ()
    """Paths whose ``_SUCCESS`` is written, oldest first; of ``replacing`` those that have none until ``replaced`` names
    them again; of any other kind those whose ``_SUCCESS`` is replaced."""

    @property
    def new_files(self) -> list[OutputFile]:
        """Those that come by this entry."""
        return [] if self.kind == "replaced" else self.files

    @property
    def files(self) -> list[OutputFile]:
        """Those of all windows."""
        return [file for window in self.windows for file in window.files]

    def to_bytes(self) -> bytes:
        """As it is stored; the same entry is always the same bytes."""
        content: dict[str, Any] = {"format": FORMAT, **asdict(self)}
        for window in content["windows"]:
            if window["leader_epoch"] < 0:
                del window["leader_epoch"]
        # Most entries have none of these, and earlier versions do not know them.
        for name in ("removed", "directories"):
            if not content[name]:
                del content[name]
        if self.other < 0:
            del content["other"]
        return json.dumps(content, separators=(",", ":"), sort_keys=True).encode()

    @classmethod
    def from_bytes(cls, data: bytes, key: str) -> Self:
        """What ``to_bytes`` wrote; CommitLogCorrupt for anything else."""
        content = _object(_loaded(data, key), key)
        if content.pop("format", None) != FORMAT or content.get("kind") not in get_args(EntryKind):
            raise CommitLogCorrupt(f"{key} is no entry of a commit log of format {FORMAT}: a later version wrote it?")
        windows = tuple(_window(one, key) for one in _list(content.pop("windows", None), key))
        removed = tuple(_texts(content.pop("removed", []), key))
        directories = tuple(_texts(content.pop("directories", []), key))
        lists = {"windows": windows, "removed": removed, "directories": directories}
        return _built(cls, {"other": -1, **content, **lists}, key)


def _window(value: object, key: str) -> WrittenWindow:
    content = _object(value, key)
    files = tuple(_file(one, key) for one in _list(content.pop("files", None), key))
    # Entries of earlier versions do not tell how much was read, and under which leader.
    window = _built(WrittenWindow, {"read_bytes": -1, "leader_epoch": -1, **content, "files": files}, key)
    if not 0 <= window.start <= window.stop <= MAX_INT64:
        raise CommitLogCorrupt(f"{key} has a window from {window.start} to {window.stop}")
    return window


def _file(value: object, key: str) -> OutputFile:
    content = _object(value, key)
    try:
        prepared = Prepared.from_json(content.pop("prepared", None))
    except StoreError as error:
        raise CommitLogCorrupt(f"{key}: {error}") from error
    return _built(OutputFile, {**content, "prepared": prepared}, key)


def _loaded(data: bytes, key: str) -> object:
    try:
        return cast("object", json.loads(data))
    except (ValueError, RecursionError):
        raise CommitLogCorrupt(f"{key} is no JSON, though entries of a commit log are") from None


def loaded_object(data: bytes, key: str) -> dict[str, Any]:
    """An object of JSON; CommitLogCorrupt for anything else."""
    return _object(_loaded(data, key), key)


def _object(value: object, key: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise CommitLogCorrupt(f"{key} has something else where an object of JSON belongs")
    return dict(cast("Mapping[str, Any]", value))


def _list(value: object, key: str) -> list[object]:
    if not isinstance(value, list):
        raise CommitLogCorrupt(f"{key} has something else where a list of JSON belongs")
    return cast("list[object]", value)


def _texts(value: object, key: str) -> list[str]:
    texts = _list(value, key)
    if not all(isinstance(text, str) for text in texts):
        raise CommitLogCorrupt(f"{key} has something else where a text of JSON belongs")
    return cast("list[str]", texts)


def _built(kind: type[Part], content: Mapping[str, Any], key: str) -> Part:
    """A value of these fields, no more and no less, each of its type."""
    untyped: Any = kind
    types = {one.name: one.type for one in fields(untyped)}
    if types.keys() != content.keys():
        raise CommitLogCorrupt(f"{key}: a {kind.__name__} has other fields than {', '.join(types)}")
    for name, wanted in types.items():
        value = content[name]
        if (wanted == "int" and (type(value) is not int or not -1 <= value <= MAX_INT64)) or (
            wanted == "str" and not isinstance(value, str)
        ):
            raise CommitLogCorrupt(f"{key}: {name} of a {kind.__name__} is no {wanted}")
    built: Part = untyped(**content)
    return built
