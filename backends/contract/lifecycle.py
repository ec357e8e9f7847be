"""Which rules of a bucket concern the objects under a prefix."""

from __future__ import annotations

from collections.abc import Iterable


def concerns(prefix: str, of_rule: Iterable[str]) -> bool:
    """Whether a rule for these prefixes (none: for all objects) takes some of those under ``prefix``."""
    prefixes = list(of_rule)
    return not prefixes or any(one.startswith(prefix) or prefix.startswith(one) for one in prefixes)
