"""What killed tasks and drivers left in an output's store, and that nobody will ever publish."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tieredstore.backends.base import DRAFT_PREFIX, find_abandoned_writes, store_time_ms
from tieredstore.errors import ConfigError
from tieredstore.pipelines.filing.naming import OWN_FOLDER
from tieredstore.pipelines.log.commit_log import CommitLog, Life
from tieredstore.pipelines.log.entries import read_json
from tieredstore.pipelines.run.generation import Claim
from tieredstore.pipelines.run.recipes import naming_of

if TYPE_CHECKING:
    from tieredstore.backends.base import AbandonedWrite, ObjectStore
    from tieredstore.pipelines.config.settings import Pipeline

LEAST_AGE_MS: Final = 3_600_000
"""What is younger may be of a task at work, whatever is asked for."""


class GarbageOutcome(enum.StrEnum):
    """What becomes of one piece."""

    DELETED = "deleted"
    YOUNG = "young"
    COMMITTED = "committed"
    """It is committed and not yet published: whoever starts next does that."""
    LEFT = "left"
    """Only the store takes it away, in its own time."""


@dataclass(frozen=True, slots=True)
class GarbageStep:
    """One piece of what lies there unseen. ``size`` in bytes, None where the store does not tell."""

    key: str
    size: int | None
    outcome: GarbageOutcome


def collect_garbage(pipeline: Pipeline, store: ObjectStore, *, min_age_ms: int, apply: bool) -> Iterator[GarbageStep]:
    """What is prepared and will not be published, of the pipeline's generation; with ``apply`` it is deleted.

    A folder's hidden files tell no generation: there it is that of all generations of the root, of none what is
    committed. ConfigError for an age below an hour, or a store that does not tell its time.
    """
    if min_age_ms < LEAST_AGE_MS:
        raise ConfigError("a least age below an hour is not safe: what is younger may be of a task at work")
    now_ms = store_time_ms(store)
    naming = naming_of(pipeline)
    waiting = set[str]().union(*(_waiting(store, root) for root in naming.places.roots))
    log = CommitLog(store, naming.root, naming.pipeline, naming.generation)
    for info in store.list(log.staging_prefix):
        outcome = _outcome(info.modified_ms, now_ms - min_age_ms, is_waiting=info.key in waiting)
        if apply and outcome is GarbageOutcome.DELETED:
            store.delete([info.key])
        yield GarbageStep(info.key, info.size, outcome)
    own = re.compile(rf"\.?{naming.generation}_\d+_\d{{20}}(\..*)?")
    for write in (write for prefix in naming.places.prefixes for write in find_abandoned_writes(store, prefix)):
        name = write.key.rpartition("/")[2]
        is_below = write.key.startswith(naming.root) or naming.places.inner(write.key) is not None
        is_of_data = is_below and (name.startswith(DRAFT_PREFIX) or own.fullmatch(name))
        if not (write.key.startswith(naming.folder) or is_of_data):
            continue
        outcome = _outcome(write.started_ms, now_ms - min_age_ms, is_waiting=bool({write.key, name} & waiting))
        if outcome is GarbageOutcome.DELETED:
            outcome = _discarded(store, write, apply=apply)
        yield GarbageStep(write.key, write.size, outcome)


def _outcome(modified_ms: int | None, older_than_ms: int, *, is_waiting: bool) -> GarbageOutcome:
    if is_waiting:
        return GarbageOutcome.COMMITTED
    if modified_ms is None or modified_ms > older_than_ms:
        return GarbageOutcome.YOUNG
    return GarbageOutcome.DELETED


def _discarded(store: ObjectStore, write: AbandonedWrite, *, apply: bool) -> GarbageOutcome:
    if not write.removable or (apply and not store.discard(write)):
        return GarbageOutcome.LEFT
    return GarbageOutcome.DELETED


def _waiting(store: ObjectStore, root: str) -> set[str]:
    """Keys, staged keys and names of hidden files that the last entry of any generation of the root has."""
    waiting: set[str] = set()
    for info in store.list(f"{root}{OWN_FOLDER}/generations/"):
        owner = read_json(Claim, store.get(info.key), info.key)
        number = info.key.rpartition("/")[2].removesuffix(".json")
        if not number.isdigit():
            continue
        log = CommitLog(store, root if owner.root is None else owner.root, owner.pipeline, int(number))
        state = log.read()
        if state.unpublished >= 0 and state.life is not Life.DROPPED:
            files = log.entry(state.unpublished).files
            waiting.update(text for file in files for text in (file.key, file.prepared.place) if text)
    return waiting
