"""Origins of output files: the offsets of their records, and other raw copies of the same records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tieredstore.errors import ObjectNotFoundError
from tieredstore.pipelines.filing.naming import OWN_FOLDER, parse_name
from tieredstore.pipelines.log.holdings import Committed
from tieredstore.pipelines.run.generation import commit_log_of
from tieredstore.pipelines.run.recipes import places_of

if TYPE_CHECKING:
    from tieredstore.backends.base import ObjectStore
    from tieredstore.pipelines.config.settings import Pipeline
    from tieredstore.pipelines.filing.naming import Places
    from tieredstore.reading.log_snapshot import LogSnapshot


@dataclass(frozen=True, slots=True)
class Origin:
    """A range of offsets, ``first`` to ``last`` (inclusive), that includes all records of a file.

    ``committed`` is True if a commit log has the range. Otherwise the range comes from file names, and ``last`` is None
    for Secor's newest file of a partition. ``backups`` are the keys of other files with the same records, and
    ``segments`` the names of segments with these records.
    """

    key: str
    topic: str
    partition: int
    first: int
    last: int | None
    committed: bool
    backups: tuple[str, ...] = ()
    segments: tuple[str, ...] = ()


def origins_of(
    pipeline: Pipeline,
    store: ObjectStore,
    keys: Sequence[str],
    *,
    snapshot: LogSnapshot | None = None,
    backups: Sequence[Committed] = (),
) -> Iterator[Origin]:
    """Yield the origin of each file, with the range of offsets from the commit log. For files that no log entry names,
    such as Secor's, use the file names. ``backups`` are files of pipelines that store messages unchanged.

    Raises ObjectNotFoundError for a key that neither the log nor the listing has.
    """
    committed = Committed.of(commit_log_of(pipeline, store))
    for key in keys:
        if (one := committed.files.get(key)) is None:
            origin = _by_names(store, places_of(pipeline), key)
        else:
            origin = Origin(key, *one.window.where, one.file.first_offset, one.file.last_offset, committed=True)
        yield _with_copies(origin, snapshot, backups)


def _with_copies(origin: Origin, snapshot: LogSnapshot | None, backups: Sequence[Committed]) -> Origin:
    where, stop = (origin.topic, origin.partition), None if origin.last is None else origin.last + 1
    held = [key for backup in backups for key in backup.overlapping(where, origin.first, origin.last)]
    log = snapshot.logs.get(where) if snapshot is not None else None
    segments: list[str] = []
    if log is not None and log.lineage is not None:
        for span in log.lineage.spans_between(origin.first, log.seam if stop is None else min(stop, log.seam)):
            identity = span.segment.remote_log_segment_id
            segments.append(f"{span.segment.start_offset:020}-{identity.id}")
    return replace(origin, backups=tuple(held), segments=tuple(segments))


def place_of(places: Places, key: str) -> tuple[str, int]:
    """Return the topic and the partition of a file. Raise ObjectNotFoundError for a key outside the output."""
    name = parse_name(key, or_beside=True)
    is_own = key.startswith(f"{places.root}{OWN_FOLDER}/")
    inner = key.removeprefix(places.root) if is_own else places.inner(key) or ""
    topic = inner.rpartition("/quarantine/")[2].partition("/")[0]
    if name is None or not topic or "/" not in inner:
        raise ObjectNotFoundError(
            f"{key} is not named like an output file of Secor: "
            "<root><topic>/<partitions>/<generation>_<partition>_<offset>"
        )
    return topic, name.partition


def _by_names(store: ObjectStore, places: Places, key: str) -> Origin:
    """Return the offsets from the start of this file's upload to the start of the next upload. Secor names all files of
    an upload by the upload's first offset.
    """
    topic, partition = place_of(places, key)
    names = {info.key: parse_name(info.key, or_beside=True) for info in places.list_files(store, [topic])}
    own = names.get(key)
    if own is None:
        raise ObjectNotFoundError(f"{key} does not exist: give the key of an output file")
    following = [one.offset for one in names.values() if one is not None and one[:2] == own[:2] and one > own]
    return Origin(key, topic, partition, own.offset, min(following) - 1 if following else None, committed=False)
