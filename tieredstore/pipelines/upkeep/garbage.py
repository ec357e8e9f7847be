"""Garbage in an output: prepared files (uploaded, not yet visible) of killed tasks and drivers. No driver will publish
them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from tieredstore.backends.base import DRAFT_PREFIX, find_abandoned_writes, store_time_ms
from tieredstore.errors import ConfigError
from tieredstore.ops.steps import Outcome, Step
from tieredstore.pipelines.filing.naming import OWN_FOLDER
from tieredstore.pipelines.run.generation import find_claimed_logs
from tieredstore.pipelines.run.recipes import naming_of

if TYPE_CHECKING:
    from tieredstore.backends.base import AbandonedWrite, ObjectInfo, ObjectStore
    from tieredstore.pipelines.config.settings import Pipeline
    from tieredstore.pipelines.log.commit_log import CommitLog

LEAST_AGE_MS: Final = 3_600_000
"""Minimum age of garbage, because a younger file may belong to a running task."""


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
