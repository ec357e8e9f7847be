"""What a bucket keeps of objects that are deleted: versions, soft deletes, and what is under retention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

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
