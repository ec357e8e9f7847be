"""Deletion of files of an output: all files of a generation (a version of the output), or garbage.

A deleted generation ends in the commit log first. Garbage consists of prepared files (uploaded, not yet visible) of
killed tasks and drivers. No driver will publish them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from tieredstore.backends.base import DRAFT_PREFIX, ObjectInfo, find_abandoned_writes, store_time_ms
from tieredstore.errors import ConfigError, FencedError
from tieredstore.ops.steps import Outcome, Step
from tieredstore.pipelines.filing.naming import OWN_FOLDER
from tieredstore.pipelines.log.commit_log import CommitLog, Life
from tieredstore.pipelines.log.entries import effects
from tieredstore.pipelines.log.holdings import Committed, with_those_above
from tieredstore.pipelines.log.successes import SUCCESS, change_success, read_success
from tieredstore.pipelines.run.finalizing import settle_successes
from tieredstore.pipelines.run.generation import Generation, find_claimed_logs
from tieredstore.pipelines.run.recipes import naming_of
from tieredstore.pipelines.run.window_writing import discard_files
from tieredstore.pipelines.upkeep.inspection import list_output

if TYPE_CHECKING:
    from tieredstore.backends.base import AbandonedWrite, ObjectStore
    from tieredstore.pipelines.config.settings import Pipeline

_AT_ONCE: Final = 500
_ATTEMPTS: Final = 10

LEAST_AGE_MS: Final = 3_600_000
"""Minimum age of garbage, because a younger file may belong to a running task."""


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


def collect_garbage(
    pipeline: Pipeline, store: ObjectStore, *, min_age_ms: int, as_of_ms: int | None = None, dry_run: bool = True
) -> Iterator[Step[ObjectInfo | AbandonedWrite]]:
    """Yield each prepared file (uploaded, not yet visible) of the generation with its outcome. Delete the files that no
    driver will publish, except in a dry run.

    In a local folder, the names of hidden files do not show their generation, so include hidden files of all
    generations. Never delete committed files. Ages are counted up to ``as_of_ms`` of the store's clock. The default is
    the present time. Raises ConfigError for a minimum age below an hour, or if the store does not report its own time.
    """
    if min_age_ms < LEAST_AGE_MS:
        raise ConfigError("the minimum age must be at least an hour: younger files may belong to a running task")
    now_ms = store_time_ms(store) if as_of_ms is None else as_of_ms
    naming = naming_of(pipeline)
    waiting = set[str]()
    # Search only the folders of topics that these logs name. Another folder may belong to a pipeline whose root is
    # below this root, and these logs do not name that pipeline's committed files.
    folders = {OWN_FOLDER}
    for root in naming.places.roots:
        for log in find_claimed_logs(store, root):
            waiting |= _read_waiting(log)
            folders.update(topic for topic, _ in log.state.positions)
    for info in store.list(naming.staging_prefix):
        outcome = _outcome(info.modified_ms, now_ms - min_age_ms, is_waiting=info.key in waiting)
        if not dry_run and outcome is Outcome.DELETED:
            store.delete([info.key])
        yield Step(info, outcome)
    is_root = functools.cache(functools.partial(_is_root, store))
    own = re.compile(rf"\.?{naming.generation}_\d+_\d{{20}}(\..*)?")
    for write in (write for prefix in naming.places.prefixes for write in find_abandoned_writes(store, prefix)):
        name = write.key.rpartition("/")[2]
        inner = naming.places.inner(write.key) or write.key.removeprefix(naming.root)
        is_of_data = inner.partition("/")[0] in folders and (name.startswith(DRAFT_PREFIX) or own.fullmatch(name))
        if not (write.key.startswith(naming.folder) or is_of_data):
            continue
        # Skip data of another pipeline. Its root may be below this root, and have the name of a topic.
        root, inside = write.key.removesuffix(inner), accumulate(f"{part}/" for part in inner.split("/")[:-1])
        if is_of_data and any(is_root(f"{root}{folder}") for folder in inside):
            continue
        outcome = _outcome(write.started_ms, now_ms - min_age_ms, is_waiting=bool({write.key, name} & waiting))
        if outcome is Outcome.DELETED and not (write.removable and (dry_run or store.discard(write))):
            outcome = Outcome.LEFT
        yield Step(write, outcome)


def _is_root(store: ObjectStore, folder: str) -> bool:
    """Return True if ``folder`` is the root (key prefix) of a pipeline."""
    return next(iter(store.list(f"{folder}{OWN_FOLDER}/generations/")), None) is not None


def _outcome(modified_ms: int | None, older_than_ms: int, *, is_waiting: bool) -> Outcome:
    if is_waiting:
        return Outcome.COMMITTED
    if modified_ms is None or modified_ms > older_than_ms:
        return Outcome.YOUNG
    return Outcome.DELETED


def _read_waiting(log: CommitLog) -> set[str]:
    """Read a log; return the keys and the staging keys of its committed but unpublished files."""
    state = log.read()
    if state.unpublished < 0:
        return set()
    files = log.entry(state.unpublished).files
    return {text for file in files for text in (file.key, file.prepared.place) if text}
