"""The end of a generation: an entry that says so, then its files go."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tieredstore.errors import ConfigError, ObjectNotFound
from tieredstore.pipelines.committed import Committed
from tieredstore.pipelines.entries import loaded_object
from tieredstore.pipelines.finalizing import SUCCESS
from tieredstore.pipelines.inspection import commit_log_of, listed_files
from tieredstore.pipelines.setup import fingerprint_of
from tieredstore.pipelines.window_writing import discard_files

if TYPE_CHECKING:
    from tieredstore.backends.base import ObjectStore
    from tieredstore.pipelines.commit_log import CommitLog
    from tieredstore.pipelines.settings import Pipeline

_AT_ONCE: Final = 500


@dataclass(frozen=True, slots=True)
class Dropped:
    """A file that goes, or would."""

    key: str
    size: int


def drop_generation(pipeline: Pipeline, store: ObjectStore, *, apply: bool) -> Iterator[Dropped]:
    """Delete all files of the pipeline's generation, with ``apply``; each is told of when it is gone.

    An entry says so before anything goes, which fences whoever runs it; the log stays, so that nobody begins the
    generation anew. Killed and run again it completes. Strangers, whatever their names, are left alone.
    """
    log = commit_log_of(pipeline, store)
    state = log.read()
    if state.number < 0:
        raise ConfigError(
            f"generation {pipeline.own.generation} of {pipeline.own.name} has no commit log: there is nothing to drop"
        )
    if apply:
        if state.closed != "drop":
            log.append("drop", fingerprint_of(pipeline.own))
        # What is committed and not published must not appear any more.
        if state.written >= 0:
            discard_files(store, log.entry(state.written).files)
    # Nobody is to read a directory as complete while its files go.
    files = [*_successes(pipeline, store, log), *_files(pipeline, store, log)]
    for start in range(0, len(files), _AT_ONCE):
        piece = files[start : start + _AT_ONCE]
        if apply:
            store.delete(file.key for file in piece)
        yield from piece


def _successes(pipeline: Pipeline, store: ObjectStore, log: CommitLog) -> Iterator[Dropped]:
    """What says that directories are complete, where another generation has not said so since."""
    own = {"pipeline": pipeline.own.name, "generation": pipeline.own.generation}
    for path in sorted(log.state.finalized):
        key = f"{path}/{SUCCESS}"
        with contextlib.suppress(ObjectNotFound):
            data = store.get(key)
            said = loaded_object(data, key)
            if own.items() <= said.items():
                yield Dropped(key, len(data))


def _files(pipeline: Pipeline, store: ObjectStore, log: CommitLog) -> list[Dropped]:
    """Those of any entry that are still there, and what lies staged."""
    committed, own = Committed(), set[str]()
    for entry in log.entries():
        committed.take(entry)
        own.update(file.key for file in entry.files)
    listed = listed_files(pipeline, store, committed.topics)
    staged = {info.key: info.size for info in store.list(log.staging_prefix)}
    return [Dropped(key, size) for key, size in sorted((listed | staged).items()) if key in own or key in staged]
