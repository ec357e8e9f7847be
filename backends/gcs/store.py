"""Objects in a bucket of Google Cloud Storage (the extra ``gcs``)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, TypeVar, cast

import requests
from crc32c import crc32c

from tieredstore.backends.base import (
    AbandonedWrite,
    Body,
    BucketLifecycle,
    LifecycleRule,
    LifecycleState,
    ObjectInfo,
    Prepared,
)
from tieredstore.backends.cloud.answers import stated_size
from tieredstore.backends.cloud.store import Answer, CloudStore, concerns, delete_singly
from tieredstore.backends.contract import staging
from tieredstore.backends.contract.bodies import closed_body
from tieredstore.backends.contract.keys import checked_key
from tieredstore.backends.gcs.client import GcsClient, info_of, open_client
from tieredstore.backends.gcs.credentials import described
from tieredstore.backends.gcs.errors import raise_for, translated
from tieredstore.backends.gcs.options import GcsOptions
from tieredstore.backends.gcs.upload import GcsUpload, copied, crc32c_text, deleted
from tieredstore.backends.http.body import HttpAnswer
from tieredstore.backends.http.ranges import answered_size, is_whole, range_header
from tieredstore.errors import InvalidKey, StoreError, StoreUnavailable, TieredStoreError, excerpt
from tieredstore.limits import MAX_INT64
from tieredstore.process.deadline import Deadline

if TYPE_CHECKING:
    from tieredstore.config import Settings

Result = TypeVar("Result")


class GcsObjectStore(CloudStore[GcsClient, GcsOptions]):
    """One bucket. The etag of an object is its generation; conditions are on it.

    The server checks a CRC-32C of everything that is written; a whole object that is read is checked here, a range
    cannot be. An upload that a killed process left unfinished is never visible, cannot be listed (so there are no
    ``abandoned_writes``), and the server forgets it after a week.
    """

    bucket_setting: ClassVar = "storage.gcs.bucket.name"

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """The store of ``storage.gcs.*`` and ``storage.proxy.*``."""
        return cls(GcsOptions.from_settings(settings))

    @property
    def identity(self) -> str:
        """``gs://bucket``, or the bucket's place under the endpoint that was set."""
        return self.options.url

    @staticmethod
    def _open(options: GcsOptions) -> GcsClient:
        return open_client(options)

    @staticmethod
    def _translated(what: str) -> AbstractContextManager[None]:
        return translated(what)

    def _check_key(self, key: str) -> None:
        checked_key(key)
        if key in {".", ".."} or "\r" in key or "\n" in key or key.startswith(".well-known/acme-challenge/"):
            raise InvalidKey(f"{key!r} cannot be the name of an object in Google Cloud Storage")

    def _is_etag(self, text: str) -> bool:
        return text.isascii() and text.isdigit() and 0 < int(text[:20]) <= MAX_INT64

    @property
    def _upload(self) -> type[GcsUpload]:
        return GcsUpload

    def prepare(self, key: str, body: Body, *, staging_prefix: str) -> Prepared:
        """An object under the prefix: an upload session cannot be ended by another process."""
        with closed_body(body):
            self._check_key(key)
            return staging.prepare(self, key, body, staging_prefix)

    def publish(self, prepared: Prepared) -> None:
        """Copied by the server, on condition that the key is free; then deleted where it was."""
        self._check_key(prepared.key)
        staging.publish(self, prepared, self._copy)

    def abandoned_writes(self, prefix: str = "") -> Iterator[AbandonedWrite]:  # noqa: ARG002
        """Nothing: the service forgets unfinished uploads after a week, and lists none."""
        return iter(())

    def discard(self, write: AbandonedWrite | Prepared) -> bool:
        """Delete what was staged."""
        return isinstance(write, Prepared) and staging.discard(self, write)

    def _copy(self, prepared: Prepared) -> None:
        # There are servers that pass over the condition of a copy: of what stands already they are not asked.
        if self._exists(prepared.key):
            raise staging.another(self, prepared)
        what = self.named(prepared.key)
        self.call("write", what, lambda client: copied(client, what, prepared))

    def _read(
        self, client: GcsClient, key: str, start: int, stop: int | None, take: Callable[[Answer], Result], what: str
    ) -> Result:
        headers = {"Accept-Encoding": "identity", **range_header(start, stop)}
        with client.session.get(client.download_url(key), headers=headers, stream=True) as response:
            raise_for(response)
            # A web page has none.
            stated_size(int(response.headers["X-Goog-Generation"]))
            size = answered_size(what, start, stop, response.headers)
            return take(HttpAnswer(size, response.raw, what, partial(_check_crc, response, what)))

    def _head(self, client: GcsClient, key: str) -> ObjectInfo:
        blob = client.blob(key)
        blob.reload(retry=None)
        return info_of(blob)

    def _date(self, client: GcsClient) -> str | None:
        return client.listing_date()

    def _kept(self, client: GcsClient) -> list[str]:
        return kept_sentences(client.bucket_properties("versioning,softDeletePolicy,retentionPolicy"))

    def _rules(self, client: GcsClient, prefix: str, /) -> list[str]:
        return rule_sentences(client.bucket_properties("lifecycle"), prefix)

    def lifecycle(self) -> GcsLifecycle:
        """The bucket's rules; a change is on condition that nobody else has changed the bucket."""
        return GcsLifecycle(self.identity, partial(self.call, "look", self.identity))

    def _caller(self, client: GcsClient, /) -> str:
        return described(client.credentials)

    def _ask_for_bucket(self, client: GcsClient) -> None:
        # Google's service says which of the two is absent, but other servers have to be asked.
        client.page(prefix="", start=None, token=None, size=1)

    def _listed(self, prefix: str, start_after: str | None) -> Iterator[ObjectInfo]:
        return self.pages(
            self.identity,
            lambda client, token: client.page(
                prefix=prefix, start=start_after, token=token, size=self.options.page_size
            ),
        )

    def _deletion(self) -> Callable[[Sequence[str]], Sequence[TieredStoreError]]:
        # The service runs the parts of a batch request no faster.
        parallelism, stall = self.options.delete_parallelism, self.stall()
        return partial(delete_singly, delete=self._delete, parallelism=parallelism, stall=stall)

    def _delete(self, key: str, deadline: Deadline) -> None:
        what = self.named(key)
        self.call("delete", what, lambda client: deleted(client, what, key), deadline=deadline)


def _check_crc(response: requests.Response, what: str, data: bytes | memoryview) -> None:
    """StoreUnavailable if ``data`` is a whole object, but not what the server's checksum is of."""
    hashes = response.headers.get("X-Goog-Hash", "")
    if not is_whole(response.headers) or "crc32c=" not in hashes:
        return
    if f"crc32c={crc32c_text(crc32c(data))}" not in hashes.replace(" ", "").split(","):
        raise StoreUnavailable(f"{what}: the object was damaged on its way from the server")


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
