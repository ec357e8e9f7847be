"""The kinds of state that tieredstore keeps in buckets and on disks, and their versions.

JSON objects begin with their version, as in ``{"version":1,"topic":…``, so that a release can read the version before
the rest. A kind's version rises with each change that an earlier release would misread.

A release reads and continues all earlier versions. It refuses later versions and leaves them unchanged: see
:class:`~tieredstore.errors.NewerVersionError`.

The table also lists objects that only optional packages write, so that ``doctor --for`` knows every object even if its
package is not installed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from tieredstore.errors import ConfigError, CorruptDataError, NewerVersionError

HEAD_BYTES: Final = 64
"""The version of a JSON object is always within this many bytes from its start."""

_HEAD: Final = re.compile(rb'\s{0,8}\{\s{0,8}"version"\s{0,8}:\s{0,8}(0|[1-9][0-9]{0,8})\s{0,8}(,|(?=[\s}]))')
_RELEASE: Final = re.compile(r"(\d{1,4})\.(\d{1,4})(\.\d{1,4})?", re.ASCII)
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class StateKind:
    """One kind of state. ``releases`` lists each release that raised the version, with the new version, oldest first.

    ``place`` is a regular expression that matches the end of the keys of this kind; None for a kind that is never in a
    bucket.
    """

    name: str
    place: str | None
    releases: tuple[tuple[str, int], ...] = (("0.1", 1),)

    @property
    def version(self) -> int:
        """The version that this release writes, and the latest that it reads."""
        return max(version for _, version in self.releases)

    def version_for(self, release: tuple[int, int]) -> int:
        """Return the latest version of this kind that ``release`` reads; 0 if ``release`` does not know the kind."""
        return max((version for since, version in self.releases if _parse(since) <= release), default=0)

    def to_bytes(self, document: Mapping[str, object], *, indent: int | None = None) -> bytes:
        """Return the object's bytes: JSON that begins with the version."""
        separators = (",", ":") if indent is None else None
        text = json.dumps({"version": self.version, **document}, separators=separators, indent=indent)
        return text.encode() + b"\n"

    def refuse_newer(self, version: int, where: str) -> None:
        """Raise NewerVersionError if the version is later than this release's."""
        if version > self.version:
            raise NewerVersionError(
                f"{where} is a {self.name} of version {version}, and this release reads up to version "
                f"{self.version}: upgrade tieredstore. Nothing was changed"
            )

    def parse(
        self,
        kind: TypeAdapter[_Value],
        raw: bytes | None,
        where: str,
        error: type[CorruptDataError] = CorruptDataError,
    ) -> _Value:
        """Parse an object's bytes into ``kind``, a class with all fields except the version. ``raw`` is None if the
        object is too large.

        If the bytes do not match the class, raise ``error``; its message names a field. Raise NewerVersionError for a
        later version.
        """
        match = _HEAD.match(raw or b"")
        if raw is None or match is None:
            raise error(f"{where} is not a valid {self.name}: it does not begin with its version")
        self.refuse_newer(int(match[1]), where)
        try:
            return kind.validate_json(b"{" + raw[match.end() :], strict=True)
        except ValidationError as invalid:
            raise error(f"{where} is not a valid {self.name}: {fault_in(invalid)}") from invalid


def fault_in(invalid: ValidationError) -> str:
    """Return the first fault in a few words, with the field's name and a short value."""
    first = invalid.errors(include_url=False)[0]
    name = ".".join(map(str, first["loc"]))
    has_value = name and first["type"] not in {"missing", "value_error", "literal_error", "unexpected_keyword_argument"}
    shown = f"its {name[:80]} is {first['input']!r:.60}" if has_value else f"{name[:80]}: {first['msg']:.200}"
    return shown.removeprefix(": ")


def refuse_newer_offsets(kind: StateKind, offsets: object) -> None:
    """Raise NewerVersionError if a later release wrote the offsets of a Spark checkpoint."""
    where = f"this query's offset {offsets!s:.80}"
    version = cast("Mapping[str, object]", offsets).get("version") if isinstance(offsets, Mapping) else None
    if type(version) is int:
        kind.refuse_newer(version, where)


def version_in(head: bytes) -> int | None:
    """Return the version at the beginning of an object; None if it has no version. ``head`` needs only the first
    ``HEAD_BYTES``.
    """
    match = _HEAD.match(head)
    return None if match is None else int(match[1])


WATERMARK: Final = StateKind("watermark", r"!tieredstore/watermarks/[^/]+/\d+\.json")
LAYOUT_RECORD: Final = StateKind("layout record", r"!tieredstore/layout\.json")
HOLD: Final = StateKind("legal hold", r"!tieredstore/holds/[^/]+\.json")
CLUSTER_SNAPSHOT: Final = StateKind("cluster snapshot", r"!tieredstore/snapshots/[^/]+/[^/]+\.json")
OFFSET_MAP: Final = StateKind("restore offset map", r"!tieredstore/restores/[^/]+/offsets")

_PUBSUB: Final = r"!tieredstore/pubsub/.+/"
TOPIC: Final = StateKind("pub/sub topic", _PUBSUB + r"topics/[^/]+\.json")
QUEUE_ENTRY: Final = StateKind("pub/sub queue entry", _PUBSUB + r"queues/[^/]+/\d+/\d{20}")
QUEUE_START: Final = StateKind("pub/sub queue start", _PUBSUB + r"queues/[^/]+/\d+/start")
GROUP_MEMBER: Final = StateKind("pub/sub group member", _PUBSUB + r"groups/[^/]+/[^/]+/members/[^/]+")
GROUP_PARTITION: Final = StateKind("pub/sub group position", _PUBSUB + r"groups/[^/]+/[^/]+/partitions/\d+")
SINK: Final = StateKind("pub/sub sink record", _PUBSUB + r"sinks/[^/]+/[^/]+")
RETIRED: Final = StateKind("pub/sub retention record", _PUBSUB + r"retired/[^/]+/\d+/\d{20}")
BROKER_SEAT: Final = StateKind("pub/sub broker seat", _PUBSUB + r"governor/brokers/[^/]+")
LEASE: Final = StateKind("pub/sub governor lease", _PUBSUB + r"governor/lease")
ASSIGNMENTS: Final = StateKind("pub/sub assignment table", _PUBSUB + r"governor/assignments")

GENERATION: Final = StateKind("pipeline generation", r"_tieredstore/generations/\d+\.json")
COMMIT: Final = StateKind("commit log entry", r"_tieredstore/[^/]+/\d+/commits/\d{20}\.json")
SNAPSHOT: Final = StateKind("commit log snapshot", r"_tieredstore/[^/]+/\d+/snapshots/\d{20}\.json")
DIRECTORY_STATEMENT: Final = StateKind("directory statement", r"/_SUCCESS")

EXPORT: Final = StateKind("export note", None)
VERIFY_STATE: Final = StateKind("state file of verify", None)
DISK_CACHE: Final = StateKind("disk cache", None)
SEALED_KEY: Final = StateKind("sealed private key", None)
SPARK_OFFSETS: Final = StateKind("checkpoint of the Spark source", None)
MEMQ_OFFSETS: Final = StateKind("checkpoint of the memq source", None)
RESTORE_PLAN: Final = StateKind("prepared restore", None)
RESTORE_CUT: Final = StateKind("cut of a restore", None)
RESTORE_POSITION: Final = StateKind("position of a restore", None)
RESTORE_OFFSETS: Final = StateKind("list of restored offsets", None)

KINDS: Final[Sequence[StateKind]] = tuple(each for each in vars().values() if isinstance(each, StateKind))
"""All kinds of state that have a version. Marker objects (for gaps in watermarks, and for key rotations) have no
version, because only their keys matter.
"""


def kind_of(key: str, kinds: Sequence[StateKind] = KINDS) -> StateKind | None:
    """Return the kind of a state object; None for segments, output files, and marker objects."""
    for kind in kinds:
        if kind.place is not None and re.search(rf"(^|.){kind.place}\Z", key):
            return kind
    return None


def parse_release(text: str, kinds: Sequence[StateKind] = KINDS) -> tuple[int, int]:
    """Parse a release such as 0.1 or 0.1.2; raise ConfigError for a release that is not in ``kinds``."""
    known = sorted({_parse(release) for kind in kinds for release, _ in kind.releases})
    if _RELEASE.fullmatch(text) is None or not known[0] <= _parse(text) <= known[-1]:
        names = ", ".join(f"{major}.{minor}" for major, minor in known)
        raise ConfigError(f"{text!r:.40} is not a release that this release knows: {names}")
    return _parse(text)


def _parse(release: str) -> tuple[int, int]:
    major, minor, *_ = release.split(".")
    return int(major), int(minor)
