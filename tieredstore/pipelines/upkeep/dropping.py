"""Dropping a generation (a version of the output): the commit log records its end, then its files are deleted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tieredstore.backends.base import ObjectInfo
from tieredstore.errors import ConfigError, FencedError
from tieredstore.pipelines.log.commit_log import Life
from tieredstore.pipelines.log.entries import effects
from tieredstore.pipelines.log.holdings import Committed, with_those_above
from tieredstore.pipelines.log.successes import SUCCESS, change_success, read_success
from tieredstore.pipelines.run.finalizing import settle_successes
from tieredstore.pipelines.run.generation import Generation
from tieredstore.pipelines.run.window_writing import discard_files
from tieredstore.pipelines.upkeep.inspection import list_output

if TYPE_CHECKING:
    from tieredstore.backends.base import ObjectStore
    from tieredstore.pipelines.config.settings import Pipeline

_AT_ONCE: Final = 500
_ATTEMPTS: Final = 10


def drop_generation(pipeline: Pipeline, store: ObjectStore, *, dry_run: bool = True) -> Iterator[ObjectInfo]:
    """Delete all files of the pipeline's generation. Yield each file after its deletion. A dry run yields the files but
    deletes nothing.

    First append a ``drop`` entry to the commit log, which fences a running driver. The log stays, so that the
    generation's number cannot be used again. If the process is killed, repeat the call to complete the deletion. Keep
    files that no log entry names.

    If the generation has begun to replace another generation's files, but has replaced none, cancel the replacement.
    Raises ConfigError while only some of the files are replaced, because the records of the replaced files would be
    lost. Raises ConfigError too while another generation replaces files of this one.
    """
    generation = Generation(pipeline, store)
    log = generation.log
    state = log.read()
    if state.life is Life.FREE:
        raise ConfigError(
            f"generation {pipeline.own.generation} of {pipeline.own.name} has no commit log: there is nothing to remove"
        )
    withheld = set[str]()
    if dry_run:
        _find_replacement(generation)  # raises the same errors as the deletion
    else:
        withheld = _append_drop(generation)
        # Discard committed files that are not yet published, so that they never become visible.
        if state.written >= 0:
            discard_files(store, log.entry(state.written).files)
        if generation.table is not None:
            generation.table.take_out(log)
    # Delete the _SUCCESS marks first, so that no reader takes a directory for complete while its files are being
    # deleted. A linked generation's mark may count this generation's files.
    marked = sorted(state.finalized | (generation.family.finalized & with_those_above(state.directories)))
    yield from _drop_successes(generation, marked, dry_run=dry_run)
    files = _files(generation)
    for start in range(0, len(files), _AT_ONCE):
        piece = files[start : start + _AT_ONCE]
        if not dry_run:
            store.delete(file.key for file in piece)
        yield from piece
    if not dry_run:
        settle_successes(generation, withheld.union(marked))


def _append_drop(generation: Generation) -> set[str]:
    """End the generation, and cancel its unfinished replacement of another generation's files. Return the directories
    that have lost their ``_SUCCESS`` because of that replacement.

    If a running driver appends an entry first, read that entry and try again. The earlier attempt may already have
    cancelled the replacement.
    """
    for _ in range(_ATTEMPTS - 1):
        try:
            return _try_drop(generation)
        except FencedError:
            generation.log.read()
    return _try_drop(generation)


def _try_drop(generation: Generation) -> set[str]:
    withheld = set[str]()
    if (found := _find_replacement(generation)) is not None:
        replaced, withheld = found
        if replaced.log.state.giving_to == generation.number:
            # Let the other generation keep its files. This entry in its log fences the backfill, whose process may only
            # be suspended. Otherwise the backfill could later delete the other generation's files, when the files of
            # this generation are already gone.
            replaced.end_replacement(generation.number)
    if generation.log.state.life is not Life.DROPPED:
        if generation.table is not None:
            generation.table.refuse_rewritten(generation.log)
        generation.log.append("drop", generation.fingerprint)
    return withheld


def _find_replacement(generation: Generation) -> tuple[Generation, set[str]] | None:
    """Return the generation whose files this generation's backfill has begun to replace, and the directories that have
    lost their ``_SUCCESS`` because of this replacement. Return None if there is no such generation, or if the
    replacement is complete.

    Raise ConfigError while only some of the files are replaced, or while another generation replaces files of this one.
    """
    log = generation.log
    if log.state.life is not Life.DROPPED:
        generation.refuse_replacement()
    if log.state.backfill < 0 or (other := log.entry(log.state.backfill).other) < 0:
        return None
    replaced = generation.with_number(other)
    is_replacing = replaced.log.read().giving_to == generation.number
    steps = [effects(entry) for entry in replaced.log.read_replacement(generation.number)]
    gives = any(does.gives for does in steps)
    if gives and is_replacing and log.state.life is not Life.DROPPED:
        raise ConfigError(
            f"generation {generation.number} has replaced some files of generation {other}: first complete the "
            "backfill, by the same command"
        )
    return None if gives and not is_replacing else (replaced, {path for does in steps for path in does.withholds or ()})


def _drop_successes(generation: Generation, paths: Sequence[str], *, dry_run: bool) -> Iterator[ObjectInfo]:
    """Delete this generation's ``_SUCCESS`` marks. If a mark of another generation counts this generation's files,
    lower the counts.
    """
    store, log, family = generation.store, generation.log, generation.family
    held = family.count_contents(paths, without=log.state)
    for path in paths:
        success = read_success(store, path)
        ours = next(filter(family.has_said, success.statements), None) if success is not None else None
        if success is None or ours is None:
            continue
        files, records = held[path]
        stays = files > 0 and not family.is_own(ours)
        if not dry_run:
            said = replace(ours, files=files, records=records) if stays else None
            change_success(store, path, said, family.has_said, log.check_alone)
        if not stays and len(success.statements) == 1:
            yield ObjectInfo(f"{path}/{SUCCESS}", success.size)


def _files(generation: Generation) -> list[ObjectInfo]:
    """Return the existing files that log entries name, and files that were uploaded but never published."""
    committed, own = Committed(), set[str]()
    for entry in generation.log.entries():
        committed.take(entry)
        own.update(file.key for file in entry.files)
    listed, _ = list_output(generation, committed)
    staged = {info.key: info.size for info in generation.store.list(generation.naming.staging_prefix)}
    return [ObjectInfo(key, size) for key, size in sorted((listed | staged).items()) if key in own or key in staged]
