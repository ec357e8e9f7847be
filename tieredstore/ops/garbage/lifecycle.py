"""Adds the one lifecycle rule that a bucket of segments needs: abort unfinished multipart uploads after some days.

The bucket's existing rules stay. If one of these rules already aborts unfinished uploads, nothing is added. The rules
are read back and compared after the change, because a service's answer alone proves nothing.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from typing import Final

from tieredstore.backends.base import BucketLifecycle, LifecycleRule, LifecycleState, ObjectStore, admin_of
from tieredstore.errors import ConfigError, PreconditionFailedError, StoreError
from tieredstore.ops.garbage.collection import least_age_ms
from tieredstore.ops.steps import Outcome, Step

_DAY_MS: Final = 86_400_000
_NAME: Final = "tieredstore-abort-unfinished-uploads"


def abort_rule_name(prefix: str) -> str:
    """Return the name of the lifecycle rule. The name contains the prefix. So each prefix of a bucket can have its own
    rule."""
    return f"{_NAME}-{hashlib.sha256(prefix.encode()).hexdigest()[:8]}" if prefix else _NAME


def least_days(upload_max_age_ms: int) -> int:
    """Return the smallest safe number of days for uploads that last at most ``upload_max_age_ms``."""
    return math.ceil(least_age_ms(upload_max_age_ms) / _DAY_MS)


def aborting_rule(state: LifecycleState, prefix: str) -> LifecycleRule | None:
    """Return the rule that aborts every unfinished upload under ``prefix``. Of several such rules, return the one with
    the fewest days.
    """
    rules = [rule for rule in state.rules if rule.aborts_all_under(prefix)]
    return min(rules, key=lambda rule: rule.aborts_after_days or 0, default=None)


def add_abort_rule(
    store: ObjectStore, prefix: str, *, days: int, upload_max_age_ms: int, dry_run: bool
) -> Step[str | None]:
    """Ensure that the bucket aborts unfinished multipart uploads under ``prefix``. Return a step with the name of the
    rule, None if the store has no lifecycle rules.

    Raise ConfigError for fewer days than twice ``upload_max_age_ms``. Raise PreconditionFailedError if another process
    changes the rules during both attempts. Raise StoreError if a rule of the same name does something else. Also raise
    StoreError if the bucket's rules after the change are not the earlier rules plus the new one.
    """
    least = least_days(upload_max_age_ms)
    if days < least:
        raise ConfigError(
            f"{days} days are too few: copies may take {upload_max_age_ms / 3_600_000:g} h (upload.max.age.ms), and "
            f"the rule must wait twice as long; give {least} or more"
        )
    lifecycle = admin_of(store).lifecycle()
    if isinstance(lifecycle, str):
        return Step(None, Outcome.NO_RULES, lifecycle)
    try:
        return _add(store, lifecycle, prefix, days, dry_run=dry_run)
    except PreconditionFailedError:
        # Read the rules again, because the write may have succeeded although its answer was lost.
        return _add(store, lifecycle, prefix, days, dry_run=dry_run)


def _add(store: ObjectStore, lifecycle: BucketLifecycle, prefix: str, days: int, *, dry_run: bool) -> Step[str | None]:
    before = lifecycle.read()
    there = aborting_rule(before, prefix)
    if there is not None:
        sentence = f"the rule {there.name} already aborts unfinished uploads after {there.aborts_after_days} days"
        return Step(there.name, Outcome.THERE, sentence)
    name = abort_rule_name(prefix)
    if any(rule.name == name for rule in before.rules):
        raise StoreError(
            f"{store.identity} has a rule {name} that does not abort unfinished uploads under this prefix (is it "
            "disabled?): nothing was changed, because existing rules stay; change or remove the rule by hand"
        )
    if not dry_run:
        try:
            lifecycle.add_abort_rule(name, prefix, days, before)
        except StoreError as error:
            if not error.retryable:
                error.add_note("no rule was added; servers that do not know such rules (MinIO is one) refuse them")
            raise
        _prove(store, before, lifecycle.read(), prefix, days)
    where = f"under {prefix!r} of {store.identity}" if prefix else f"in {store.identity}"
    sentence = f"a rule aborts unfinished multipart uploads {where} after {days} days"
    return Step(name, Outcome.ADDED, sentence)


def _prove(store: ObjectStore, before: LifecycleState, after: LifecycleState, prefix: str, days: int) -> None:
    """Raise StoreError unless exactly the wanted rule was added and all other rules are unchanged."""
    contents = Counter(rule.content for rule in after.rules)
    lost = [rule for rule in before.rules if not contents[rule.content]]
    contents.subtract(rule.content for rule in before.rules)
    ours = [rule for rule in after.rules if rule.aborts_all_under(prefix) and rule.aborts_after_days == days]
    if lost:
        error = StoreError(
            f"{store.identity} has lost the rules {', '.join(rule.name for rule in lost)} while one was added, or "
            "another user changed them: check them now (tieredstore doctor)"
        )
        error.add_note(f"the rules were: {before.text}")
        raise error
    if not ours:
        raise StoreError(
            f"{store.identity} accepted a rule that aborts unfinished uploads, but does not list it: the store does "
            "not support such rules; all other rules are unchanged, and gc removes unfinished uploads too"
        )
