"""A bucket's lifecycle rules.

The SDK drops rule fields that its release does not know, and a change replaces the whole configuration. So this module
keeps the XML text, and adds one rule to it.

S3 accepts no condition for this write. So this code reads the document back to notice a concurrent change.

This module is separate from the store, because ``versions`` reads the rules too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

from tieredstore.backends.base import BucketLifecycle, LifecycleRule, LifecycleState
from tieredstore.backends.cloud.errors import NotSupportedError
from tieredstore.backends.cloud.store import concerns
from tieredstore.backends.s3.errors import translate_errors
from tieredstore.errors import ObjectNotFoundError, StoreError, excerpt

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client
    from types_boto3_s3.type_defs import LifecycleRuleOutputTypeDef

    from tieredstore.backends.s3.client import RawAnswer, RawRequest
    from tieredstore.backends.s3.store import S3BucketClient, S3ObjectStore

_ARCHIVES: Final = {"GLACIER", "DEEP_ARCHIVE"}
"""Storage classes whose objects must be restored before a read."""


def rule_sentences(client: S3BucketClient, prefix: str) -> list[str]:
    """Return one sentence for each enabled rule that deletes or archives objects under ``prefix``. Translate the SDK's
    errors."""
    return [
        f"the rule {rule.get('ID') or '(without a name)'} {effect}"
        for rule in lifecycle_rules(client)
        if rule.get("Status") == "Enabled" and concerns(prefix, _prefixes(rule))
        for effect in _effects(rule)
    ]


def lifecycle_rules(client: S3BucketClient) -> Sequence[LifecycleRuleOutputTypeDef]:
    """Return the bucket's rules; empty if there are none, or if the server does not support rules. Translate the SDK's
    errors."""
    # Ignore status 404, with which S3 answers if there are no rules.
    with suppress(ObjectNotFoundError, NotSupportedError), translate_errors(client.options.bucket):
        return client.sdk.get_bucket_lifecycle_configuration(Bucket=client.options.bucket).get("Rules", ())
    return ()


def _prefixes(rule: LifecycleRuleOutputTypeDef) -> list[str]:
    # Old rules have the prefix outside of ``Filter``. A condition on tags is ignored, because objects under any key may
    # have the tag.
    chosen = rule.get("Filter", {})
    prefix = rule.get("Prefix") or chosen.get("Prefix") or chosen.get("And", {}).get("Prefix")
    return [prefix] if prefix else []


def _effects(rule: LifecycleRuleOutputTypeDef) -> Iterator[str]:
    expiration = rule.get("Expiration", {})
    if "Days" in expiration:
        yield f"deletes objects after {expiration['Days']} days"
    if "Date" in expiration:
        yield f"deletes objects on {str(expiration['Date'])[:10]}"
    for transition in rule.get("Transitions", []):
        if (storage_class := transition.get("StorageClass")) in _ARCHIVES:
            yield f"archives objects in {storage_class}, where they cannot be read"


_READ: Final = "before-parse.s3.GetBucketLifecycleConfiguration"
_WRITE: Final = "before-call.s3.PutBucketLifecycleConfiguration"
_LEAST_SIZE: Final = "x-amz-transition-default-minimum-object-size"
"""The header with the default minimum size of objects that the bucket's rules move to another storage class. The
header is not part of the XML document, but must be sent with it, because a write without the header resets the value.
"""

_EMPTY: Final = '<LifecycleConfiguration xmlns="http://s3.amazonaws.com/doc/2006-03-01/"></LifecycleConfiguration>'
_END: Final = re.compile(r"</((?:[\w.-]+:)?)LifecycleConfiguration\s*>\s*$")
_MOST_BYTES: Final = 1 << 20
_NOT_ACTIONS: Final = {"ID", "Status", "Filter", "Prefix"}
_ABORT: Final = "AbortIncompleteMultipartUpload"


class S3Lifecycle(BucketLifecycle):
    """Lifecycle rules of a bucket."""

    def __init__(self, store: S3ObjectStore) -> None:
        self._store = store
        self._identity = store.identity

    def read(self) -> LifecycleState:
        """Read the bucket's rules with one request; the bucket has none if S3 answers with status 404."""
        text, least_size = self._store.call("look", self._identity, self._ask)
        return LifecycleState(tuple(map(_rule_of, self._rules_in(text))), text, least_size)

    def add_abort_rule(self, name: str, prefix: str, days: int, state: LifecycleState) -> None:
        """Replace the bucket's lifecycle document: the document of ``state`` with one more rule."""
        changed = self._with_rule(state.text or _EMPTY, name, prefix, days)
        before, after = (Counter(map(_canonical, self._rules_in(text))) for text in (state.text, changed))
        # Compare the parsed documents: the new document must equal the old document plus this rule.
        if after != before + Counter([_canonical(_parse(_rule_text("", name, prefix, days)))]):
            raise self._not_understood(state.text)

        def write(client: S3BucketClient) -> None:
            def put_text(params: RawRequest, **_: object) -> None:
                params["body"] = changed.encode()
                if state.version is not None:
                    params["headers"][_LEAST_SIZE] = state.version

            with _handling(client.sdk, _WRITE, put_text):
                client.sdk.put_bucket_lifecycle_configuration(
                    Bucket=client.options.bucket, LifecycleConfiguration={"Rules": []}
                )

        self._store.call("look", self._identity, write)

    def _ask(self, client: S3BucketClient) -> tuple[str, str | None]:
        found: list[tuple[bytes, str | None]] = []

        def keep(response_dict: RawAnswer, **_: object) -> None:
            if isinstance(body := response_dict["body"], bytes):
                found.append((body, response_dict["headers"].get(_LEAST_SIZE)))

        with suppress(ObjectNotFoundError), _handling(client.sdk, _READ, keep), translate_errors(self._identity):
            client.sdk.get_bucket_lifecycle_configuration(Bucket=client.options.bucket)
            text, least_size = found[-1]
            return self._check(text), least_size
        return "", None

    def _check(self, raw: bytes) -> str:
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._not_understood(repr(raw)) from error
        if len(raw) > _MOST_BYTES:
            raise self._not_understood(text)
        return text

    def _rules_in(self, text: str) -> Iterator[ET.Element]:
        if not text:
            return
        try:
            root = _parse(text)
        except (ValueError, ET.ParseError) as error:
            raise self._not_understood(text) from error
        if _name(root) != "LifecycleConfiguration":
            raise self._not_understood(text)
        # Yield unknown elements as rules too, so that elements of future versions of S3 are kept.
        yield from root

    def _with_rule(self, text: str, name: str, prefix: str, days: int) -> str:
        end = _END.search(text)
        if end is None:
            if any(self._rules_in(text)):
                raise self._not_understood(text)
            return self._with_rule(_EMPTY, name, prefix, days)
        return f"{text[: end.start()]}{_rule_text(end[1], name, prefix, days)}{text[end.start() :]}"

    def _not_understood(self, text: str) -> StoreError:
        return StoreError(
            f"the lifecycle rules of {self._identity} are not understood, so nothing was changed: {excerpt(text, 300)}"
        )


def _parse(text: str) -> ET.Element:
    """Parse XML. Raise ParseError, or ValueError for a document with a DTD: a DTD could expand entities."""
    if "<!DOCTYPE" in text:
        raise ValueError("a document type")
    return ET.fromstring(text.encode())  # noqa: S314  see above


@contextmanager
def _handling(client: S3Client, event: str, handler: Callable[..., None]) -> Generator[None]:
    client.meta.events.register_last(event, handler)
    try:
        yield
    finally:
        client.meta.events.unregister(event, handler)


def _rule_text(space: str, name: str, prefix: str, days: int) -> str:
    """Return the rule as XML; ``space`` is the document's namespace prefix, with its colon."""

    def element(tag: str, content: str) -> str:
        return f"<{space}{tag}>{content}</{space}{tag}>"

    return element(
        "Rule",
        element("ID", escape(name))
        + element("Status", "Enabled")
        + element("Filter", element("Prefix", escape(prefix)))
        + element(_ABORT, element("DaysAfterInitiation", str(days))),
    )


def _name(element: ET.Element) -> str:
    return element.tag.rpartition("}")[2]


def _canonical(element: ET.Element) -> tuple[object, ...]:
    """Return an element's content for comparison, independent of field order, spaces and namespace prefix."""
    children = sorted(map(_canonical, element))
    content = "" if children else (element.text or "").strip()
    return (_name(element), tuple(sorted(element.attrib.items())), content, tuple(children))


def _rule_of(element: ET.Element) -> LifecycleRule:
    fields = {_name(child): child for child in element}
    prefix, is_limited = _prefix_of(fields)
    actions = [child for child in element if _name(child) not in _NOT_ACTIONS]
    days = next((leaf.text for child in actions if _name(child) == _ABORT for leaf in child), None)
    is_days = days is not None and days.strip().isascii() and days.strip().isdigit()
    return LifecycleRule(
        name=_text(fields.get("ID")) or "(without a name)",
        is_enabled=_text(fields.get("Status")) == "Enabled",
        prefixes=(prefix,) if prefix else (),
        is_limited=is_limited,
        action="; ".join(map(_show_action, actions)) or "nothing",
        aborts_after_days=int((days or "").strip()[:9]) if is_days else None,
        content=repr(_canonical(element)),
    )


def _prefix_of(fields: dict[str, ET.Element]) -> tuple[str, bool]:
    """Return a rule's prefix, and True if the rule has further conditions."""
    if "Filter" not in fields:
        return _text(fields.get("Prefix")), False
    leaves = [leaf for leaf in fields["Filter"].iter() if not len(leaf) and _name(leaf) not in {"Filter", "And"}]
    prefix = "".join(_text(leaf) for leaf in leaves if _name(leaf) == "Prefix")
    return prefix, any(_name(leaf) != "Prefix" for leaf in leaves)


def _text(element: ET.Element | None) -> str:
    return "" if element is None else (element.text or "").strip()


def _show_action(action: ET.Element) -> str:
    leaves = [f"{_name(leaf)} {_text(leaf)}" for leaf in action.iter() if not len(leaf) and leaf is not action]
    return f"{_name(action)} ({', '.join(leaves)})" if leaves else _name(action)
