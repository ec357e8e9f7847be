"""Rules of a bucket's lifecycle that take segments away."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast

from tieredstore.backends.contract.lifecycle import concerns
from tieredstore.backends.s3.errors import NotSupported, translated
from tieredstore.errors import ObjectNotFound

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

_ARCHIVES: Final = {"GLACIER", "DEEP_ARCHIVE"}
"""Classes from which nothing is read before it was restored by hand."""


def rule_sentences(client: S3Client, bucket: str, prefix: str) -> list[str]:
    """A sentence for each enabled rule that deletes or archives objects under ``prefix``; errors are ours."""
    answer: Mapping[str, Any] = {}
    # Without any rule the answer is an error of its own, of status 404.
    with suppress(ObjectNotFound, NotSupported), translated(bucket):
        answer = cast("Mapping[str, Any]", client.get_bucket_lifecycle_configuration(Bucket=bucket))
    return [
        f"the rule {rule.get('ID') or '(without a name)'} {effect}"
        for rule in answer.get("Rules", [])
        if rule.get("Status") == "Enabled" and concerns(prefix, _prefixes(rule))
        for effect in _effects(rule)
    ]


def _prefixes(rule: Mapping[str, Any]) -> list[str]:
    # Old rules have it beside their other fields. Tags are not looked at: who sets a rule by them may tag any object.
    chosen: Mapping[str, Any] = rule.get("Filter") or {}
    prefix = rule.get("Prefix") or chosen.get("Prefix") or chosen.get("And", {}).get("Prefix")
    return [prefix] if prefix else []


def _effects(rule: Mapping[str, Any]) -> Iterator[str]:
    expiration: Mapping[str, Any] = rule.get("Expiration") or {}
    if "Days" in expiration:
        yield f"deletes objects after {expiration['Days']} days"
    if "Date" in expiration:
        yield f"deletes objects on {str(expiration['Date'])[:10]}"
    for transition in rule.get("Transitions", []):
        if transition.get("StorageClass") in _ARCHIVES:
            yield f"moves objects to {transition['StorageClass']}, from where they cannot be read"
