"""A bucket's lifecycle rules and what it keeps of deleted objects: versions, soft deletes, retention. Rules are read,
shown, and one is added; all of Google's storage classes can be read at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, cast

from tieredstore.backends.base import BucketLifecycle, LifecycleRule, LifecycleState
from tieredstore.backends.contract.lifecycle import concerns
from tieredstore.backends.gcs.client import GcsClient
from tieredstore.errors import StoreError, excerpt


def rule_sentences(properties: Mapping[str, Any], prefix: str) -> list[str]:
    """A sentence for each rule that deletes live objects under ``prefix``, of the bucket's properties."""
    return [
        f"a rule deletes objects {_when(rule.get('condition', {}))}"
        for rule in properties.get("lifecycle", {}).get("rule", [])
        if rule.get("action", {}).get("type") == "Delete"
        and rule.get("condition", {}).get("isLive") is not False
        # These two are met by noncurrent versions alone.
        and not {"numNewerVersions", "daysSinceNoncurrentTime"} & set(rule.get("condition", {}))
        and concerns(prefix, rule.get("condition", {}).get("matchesPrefix", []))
    ]


def _when(condition: Mapping[str, Any]) -> str:
    if "age" in condition:
        return f"after {condition['age']} days"
    return f"if {', '.join(f'{name} is {value}' for name, value in sorted(condition.items()))}"


_ABORT: Final = "AbortIncompleteMultipartUpload"
_ABOUT: Final = {"age", "matchesPrefix"}


class GcsLifecycle(BucketLifecycle):
    """``run`` makes a request on the store's client. A change is on condition of the bucket's metageneration."""

    has_condition: ClassVar = True
    note: ClassVar = (
        "uploads of ours and of the plugin's are resumable sessions, which Google ends after a week by itself: the "
        "rule is for uploads by its XML API"
    )

    def __init__(self, identity: str, run: Callable[[Callable[[GcsClient], Any]], Any]) -> None:
        self._identity = identity
        self._run = run

    def read(self) -> LifecycleState:
        """One request."""
        properties: Mapping[str, Any] = self._run(lambda client: client.bucket_properties("lifecycle,metageneration"))
        lifecycle: object = properties.get("lifecycle", {})
        rules: object = _object(lifecycle).get("rule", [])
        every = cast("list[object]", rules) if isinstance(rules, list) and isinstance(lifecycle, dict) else [None]
        if not all(isinstance(rule, dict) for rule in every):
            there = excerpt(properties.get("lifecycle"), 300)
            raise StoreError(f"the lifecycle rules of {self._identity} are not understood: {there}")
        text = json.dumps(lifecycle) if lifecycle else ""
        shown = tuple(_rule_of(number, _object(rule)) for number, rule in enumerate(every, 1))
        return LifecycleState(shown, text, str(properties["metageneration"]))

    def add_abort_rule(self, name: str, prefix: str, days: int, state: LifecycleState) -> None:  # noqa: ARG002  see below
        """Rules of Google's have no names, so the name stands nowhere."""
        lifecycle: dict[str, Any] = json.loads(state.text) if state.text else {}
        condition: dict[str, Any] = {"age": days, **({"matchesPrefix": [prefix]} if prefix else {})}
        rule = {"action": {"type": _ABORT}, "condition": condition}
        changed = {**lifecycle, "rule": [*lifecycle.get("rule", []), rule]}
        self._run(lambda client: client.set_lifecycle(changed, state.version or ""))


def _rule_of(number: int, rule: Mapping[str, Any]) -> LifecycleRule:
    action, condition = _object(rule.get("action")), _object(rule.get("condition"))
    kind, age = str(action.get("type", "")), condition.get("age")
    prefixes = condition.get("matchesPrefix", [])
    shown = ", ".join(f"{name} {value}" for name, value in sorted(condition.items()) if name != "matchesPrefix")
    aborts = kind == _ABORT and isinstance(age, int) and not isinstance(age, bool)
    return LifecycleRule(
        name=f"rule {number}",
        is_enabled=True,
        prefixes=tuple(map(str, cast("list[object]", prefixes))) if isinstance(prefixes, list) else (str(prefixes),),
        is_limited=bool(set(condition) - _ABOUT),
        action=f"{kind or 'nothing'}{f' ({shown})' if shown else ''}",
        aborts_after_days=age if aborts else None,
        content=json.dumps(rule, sort_keys=True),
    )


def _object(value: object) -> Mapping[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


_DAY_S: Final = 86_400


def kept_sentences(properties: Mapping[str, Any]) -> list[str]:
    """A sentence each, of the bucket's properties as the JSON API tells them."""
    kept: list[str] = []
    if properties.get("versioning", {}).get("enabled"):
        kept.append(
            "the bucket has Object Versioning: what is deleted stays as noncurrent versions, and costs, until a "
            "lifecycle rule or somebody removes these"
        )
    soft_s = int(properties.get("softDeletePolicy", {}).get("retentionDurationSeconds", 0))
    if soft_s:
        kept.append(f"the bucket has soft delete: what is deleted stays, and costs, for {soft_s / _DAY_S:g} days")
    held_s = int(properties.get("retentionPolicy", {}).get("retentionPeriod", 0))
    if held_s:
        kept.append(
            f"the bucket has a retention policy: objects younger than {held_s / _DAY_S:g} days cannot be deleted"
        )
    return kept
