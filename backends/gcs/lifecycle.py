"""Rules of a bucket's lifecycle that take segments away. All of Google's storage classes can be read at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tieredstore.backends.contract.lifecycle import concerns


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
