"""Google Cloud Storage (extra ``gcs``): the store, and its writes.

A small object is written with one request, a larger one by a resumable upload. The upload is invisible until its last
chunk: https://cloud.google.com/storage/docs/performing-resumable-uploads (multiple chunk upload).
"""

from __future__ import annotations

import json
import logging
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Final, cast

import requests
from crc32c import crc32c

from tieredstore.backends.base import (
    AbandonedWrite,
    BucketLifecycle,
    LifecycleRule,
    LifecycleState,
    ObjectInfo,
    Prepared,
)
from tieredstore.backends.cloud.answers import require_size, require_text, show_body, understood
from tieredstore.backends.cloud.errors import MalformedAnswerError, PartsGoneError
from tieredstore.backends.cloud.store import CloudStore, Service, concerns
from tieredstore.backends.cloud.upload import WRITE_MARK, Stored, Upload
from tieredstore.backends.cloud.upload_parts import Part, PartCutter, send_parts
from tieredstore.backends.contract import staging
from tieredstore.backends.contract.checks import checked_key
from tieredstore.backends.gcs.client import CONTENT_TYPE, GcsClient, crc32c_text, describe_credentials, open_client
from tieredstore.backends.gcs.errors import RefusedError, raise_for, translate_errors
from tieredstore.backends.gcs.options import GcsOptions
from tieredstore.backends.http.session import Buffers
from tieredstore.errors import (
    InvalidKeyError,
    ObjectNotFoundError,
    StoreError,
    StoreUnavailableError,
    TieredStoreError,
    excerpt,
)
from tieredstore.limits import MAX_INT64
from tieredstore.process.deadline import Deadline

_logger: Final = logging.getLogger(__name__)

_PERSISTED: Final = re.compile(r"bytes=0-(\d{1,19})")
_INCOMPLETE: Final = 308
_ENDED: Final = frozenset({404, 410, 499})
_NOTHING: Final = frozenset({b"", b"null", b"{}"})
"""Bodies that count as empty: some servers send an empty JSON value instead of no body."""
_CANCEL_TIMEOUT_S: Final = 30.0


class GcsUpload(Upload[GcsClient, GcsOptions]):
    """One write to Google Cloud Storage. Its condition names the generation that the object must have."""

    parts_gone: ClassVar[str] = "the server has forgotten the upload"

    @property
    def generation(self) -> int | None:
        """The generation that the object must have; 0 for no object, None for no condition."""
        if self.condition.is_absent:
            return 0
        return None if self.condition.etag is None else int(self.condition.etag)

    def write_whole(self, data: memoryview) -> str:
        """Write the object with one request. The server checks a CRC-32C before it accepts the object."""
        crc = crc32c(data)
        boundary = uuid.uuid4().hex
        about = {
            "name": self.key,
            "contentType": CONTENT_TYPE,
            "crc32c": crc32c_text(crc),
            "metadata": {WRITE_MARK: self.mark},
        }
        head = f"--{boundary}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{json.dumps(about)}\r\n"
        body = Buffers(
            f"{head}--{boundary}\r\nContent-Type: {CONTENT_TYPE}\r\n\r\n".encode(), data, f"\r\n--{boundary}--".encode()
        )

        def send(client: GcsClient) -> Stored:
            # Do not use the SDK's method for uploads. It copies the data, and uses a resumable upload above 8 MiB.
            post: Any = client.session.post
            response: requests.Response = post(
                client.single_upload_url(self.generation),
                data=body,
                headers={"Content-Type": f"multipart/related; boundary={boundary}"},
            )
            raise_for(response)
            stored = describe_stored(self.what, response)
            if not _is_of(stored, len(data), crc):
                # Delete the damaged object now, because it would break the condition of the retry.
                self.take_back(client, stored)
                raise self._damage_error()
            return stored

        return self.finish_checked(send, len(data), crc)

    def write_parts(self, cutter: PartCutter, first: Part) -> str:
        """Write chunk by chunk; while one chunk is being sent, fill the next.

        After any failure the upload session is cancelled, so that nothing of the upload stays.
        """
        session = _Session(self)
        try:
            # Send one chunk at a time, because the server takes them only in order.
            etag = send_parts(cutter, session.send, 1, first=first)[-1]
        except BaseException:
            session.cancel()
            raise
        if etag is None:
            raise StoreError(f"{self.what}: the server did not finish the upload at its last chunk")
        return etag

    def prepare(self, cutter: PartCutter, staging_prefix: str) -> tuple[str, tuple[str, ...]]:
        """Write an object under ``staging_prefix``, because another process could not complete an upload session."""
        place = f"{staging_prefix}{self.mark}"
        checked_key(place)
        replace(self, key=place).write(cutter)
        return place, ()

    def publish(self, prepared: Prepared) -> None:
        """Let the server copy the staged object to its key, if the key is free; then delete the staged object."""
        staging.publish(self.store, prepared, self._copy)

    def _copy(self, prepared: Prepared) -> None:
        # Check that the key is free before the copy, because some servers ignore the condition of a copy and would
        # overwrite an object.
        if self.store.exists(self.key):
            raise staging.conflict_error(self.what)
        self.store.call("write", self.what, lambda client: copy_staged(client, self.what, prepared))

    def look_up(self, client: GcsClient) -> Stored:
        """Read the object's metadata with one request."""
        blob = client.blob(self.key)
        blob.reload(retry=None)
        mark = (blob.metadata or {}).get(WRITE_MARK)
        return Stored(str(require_size(blob.generation)), require_size(blob.size), blob.crc32c, mark)

    def finish_checked(
        self, send: Callable[[GcsClient], Stored], size: int, crc: int, deadline: Deadline | None = None
    ) -> str:
        """Complete the object with the request ``send``; return its etag. ``size`` and ``crc`` are those of the whole
        object."""
        stored = self.finish(send, size, lambda _, stored: _is_of(stored, size, crc), deadline)
        if not _is_of(stored, size, crc):
            self.step(lambda client: self.take_back(client, stored))
            raise self._damage_error()
        return stored.etag

    def _damage_error(self) -> StoreUnavailableError:
        return StoreUnavailableError(f"{self.what}: the object was damaged on its way to the server")

    def delete_unchanged(self, client: GcsClient, etag: str) -> None:
        """Delete the object if it still has the generation."""
        delete_object(client, self.what, self.key, int(etag))


class _Session:
    """A resumable upload, opened by its first chunk. Not thread-safe, because chunks are sent one at a time.

    After a lost connection the chunk is sent again. The server skips bytes that it already has, and reports its
    progress. If the server stored bytes twice, the CRC-32C of the whole object reveals this.
    """

    def __init__(self, upload: GcsUpload) -> None:
        self._upload = upload
        self._what = upload.what
        self._url: str | None = None
        self._persisted = 0
        self._crc = 0

    def send(self, part: Part) -> str | None:
        """Send one chunk. Return the object's etag if this chunk was the last, otherwise None."""
        if self._url is None:
            self._upload.step(self._begin)
        self._crc = crc32c(part.data, self._crc)
        stop = self._persisted + len(part.data)
        # Use one deadline for the whole chunk. The server may accept the chunk in pieces, and each piece takes a
        # request.
        deadline = self._upload.store.retries.deadline()
        if part.is_last:
            end = partial(self._end, data=part.data, stop=stop)
            return self._upload.finish_checked(end, stop, self._crc, deadline)
        while self._persisted < stop:
            self._upload.step(lambda client: self._continue(client, part.data, stop), deadline=deadline)
        return None

    def cancel(self) -> None:
        """End the session. Only log a failure, because the server drops sessions after a week by itself."""
        url = self._url
        if url is None:
            return
        try:
            deadline = Deadline.after(_CANCEL_TIMEOUT_S)
            status = self._upload.store.call(
                "cancel", self._what, lambda client: _cancel_session(client, url), deadline=deadline
            )
        except TieredStoreError as error:
            _logger.warning("%s: the failed upload could not be cancelled: %s", self._what, error)
        else:
            # Status 499 confirms the cancellation.
            _logger.info("%s: the failed upload was cancelled: status %d", self._what, status)

    def _begin(self, client: GcsClient) -> None:
        blob = client.blob(self._upload.key)
        blob.metadata = {WRITE_MARK: self._upload.mark}
        url = blob.create_resumable_upload_session(
            content_type=CONTENT_TYPE, if_generation_match=self._upload.generation, checksum=None, retry=None
        )
        # Set the URL before anything else, so that an interrupt right after the answer still cancels the session.
        self._url = client.session_url(url)

    def _continue(self, client: GcsClient, data: memoryview, stop: int) -> None:
        response = self._put(client, self._rest(data, stop), "*")
        if response.status_code != _INCOMPLETE:
            raise StoreError(f"{self._what}: the server ended the upload before its last chunk")
        self._advance(response, stop)

    def _end(self, client: GcsClient, data: memoryview, stop: int) -> Stored:
        """Send the last chunk, and return the finished object. The server may accept only a part of the chunk: then
        send the rest in further requests.
        """
        while True:
            response = self._put(client, self._rest(data, stop), str(stop))
            if response.status_code != _INCOMPLETE:
                return describe_stored(self._what, response)
            self._advance(response, stop)

    def _rest(self, data: memoryview, stop: int) -> memoryview:
        return data[len(data) - (stop - self._persisted) :]

    def _put(self, client: GcsClient, data: memoryview, total: str) -> requests.Response:
        where = f"{self._persisted}-{self._persisted + len(data) - 1}" if data else "*"
        headers = {"Content-Range": f"bytes {where}/{total}", "Content-Type": CONTENT_TYPE}
        if total != "*":
            # With this checksum the server refuses damaged data before the object becomes visible.
            headers["X-Goog-Hash"] = f"crc32c={crc32c_text(self._crc)}"
        try:
            with translate_errors(self._what):
                response = client.session.put(self._url or "", data=data, headers=headers)
                raise_for(response)
        except ObjectNotFoundError as error:
            raise PartsGoneError(str(error)) from error
        return response

    def _advance(self, response: requests.Response, stop: int) -> None:
        held = response.headers.get("Range")
        match = _PERSISTED.fullmatch(held or "")
        persisted = int(match[1]) + 1 if match else 0
        if (held is not None and match is None) or not self._persisted <= persisted <= stop:
            sent = f"{self._persisted} to {stop}"
            raise StoreError(f"{self._what}: bytes {sent} were sent, but the server holds {held!r:.80}")
        if persisted == self._persisted:
            raise StoreUnavailableError(f"{self._what}: the server accepted no byte of a chunk")
        self._persisted = persisted


def describe_stored(what: str, response: requests.Response) -> Stored:
    """Parse an answer that describes the finished object."""
    with understood(what):
        try:
            answer: dict[str, str] = response.json()
        except ValueError:
            raise MalformedAnswerError(
                f"{what}: the store answered with {show_body(response.content)}, which does not describe an object"
            ) from None
        return Stored(str(int(answer["generation"])), int(answer["size"]), answer["crc32c"])


def copy_staged(client: GcsClient, what: str, prepared: Prepared) -> None:
    """Copy a staged object to its free key on the server; a large object takes several requests."""
    token: str | None = None
    while True:
        response = client.session.post(client.copy_url(prepared.place, prepared.key, token))
        raise_for(response)
        with understood(what):
            answer: dict[str, object] = response.json()
            if answer["done"] is True:
                if int(str(_object(answer, "resource")["size"])) != prepared.size:
                    raise MalformedAnswerError(
                        f"{what}: the store reports another size for the copy than for its source"
                    )
                return
            token = require_text("the token for the rest of the copy", answer["rewriteToken"])


def delete_object(client: GcsClient, what: str, key: str, generation: int | None = None) -> None:
    """Delete an object, if ``generation`` matches. (The SDK's own method treats any answer as a success.)"""
    response = client.session.delete(client.deletion_url(key, generation))
    raise_for(response)
    if response.status_code not in {requests.codes.ok, requests.codes.no_content} or (
        response.content.strip() not in _NOTHING
    ):
        raise MalformedAnswerError(
            f"{what}: the store answered to a deletion with status {response.status_code} and "
            f"{show_body(response.content)}, though such an answer has no body"
        )


def _is_of(stored: Stored, size: int, crc: int) -> bool:
    return (stored.size, stored.digest) == (size, crc32c_text(crc))


def _cancel_session(client: GcsClient, url: str) -> int:
    try:
        return client.session.delete(url).status_code
    except RefusedError as error:
        # The session has already ended, so nothing is left to cancel.
        if error.response.status_code in _ENDED:
            return error.response.status_code
        raise


def _check_key(key: str) -> None:
    checked_key(key)
    if key in {".", ".."} or "\r" in key or "\n" in key or key.startswith(".well-known/acme-challenge/"):
        raise InvalidKeyError(f"{key!r} cannot be the name of an object in Google Cloud Storage")


class GcsObjectStore(CloudStore[GcsClient, GcsOptions]):
    """Objects in one bucket. The etag of an object is its generation.

    The server checks a CRC-32C of everything that is written. A read of a whole object is checked too, but a read of a
    range cannot be checked, because the checksum is that of the whole object.

    A killed process may leave an unfinished upload. The upload is invisible and in no listing, so there are no
    ``abandoned_writes``. The server drops the upload after a week.
    """

    service = Service(
        read_options=GcsOptions.from_settings,
        identity=lambda options: options.url,
        open_client=open_client,
        translate_errors=translate_errors,
        check_key=_check_key,
        is_etag=lambda text: text.isascii() and text.isdigit() and 0 < int(text[:20]) <= MAX_INT64,
        kept=lambda client: kept_sentences(client.bucket_properties("versioning,softDeletePolicy,retentionPolicy")),
        rules=lambda client, prefix: rule_sentences(client.bucket_properties("lifecycle"), prefix),
        caller=lambda client: describe_credentials(client.credentials),
        upload=GcsUpload,
        bucket_setting="storage.gcs.bucket.name",
    )

    def abandoned_writes(self, prefix: str = "") -> Iterator[AbandonedWrite]:  # noqa: ARG002
        """Yield nothing, because the service does not list unfinished uploads. It drops them after a week."""
        return iter(())

    def lifecycle(self) -> GcsLifecycle:
        """Return the bucket's lifecycle rules. The service refuses a change if the bucket's metadata has changed since
        the rules were read."""
        return GcsLifecycle(self)

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        """List objects with one request per page."""
        size = self.options.page_size
        infos = self.pages(
            self.identity,
            lambda token, client: client.page(prefix=prefix, start=start_after, token=token, size=size),
        )
        return self.check_listing(infos, prefix, start_after)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete with one request per key, several of them in parallel."""
        # Do not send batch requests, because the service runs the parts of a batch one by one.
        parallelism, stall = self.options.delete_parallelism, self.stall()

        def delete(client: GcsClient, key: str) -> None:
            delete_object(client, self.name_object(key), key)

        self.delete_batches(keys, lambda batch: self.delete_singly(batch, delete, parallelism, stall))


def rule_sentences(properties: Mapping[str, object], prefix: str) -> list[str]:
    """Return one sentence for each lifecycle rule that deletes live objects under ``prefix``."""
    return [
        f"a rule deletes objects {_when(condition)}"
        for action, condition in map(_split_rule, _rules_in(properties))
        if action.get("type") == "Delete"
        and condition.get("isLive") is not False
        # These two lifecycle conditions match only noncurrent versions.
        and not {"numNewerVersions", "daysSinceNoncurrentTime"} & set(condition)
        and concerns(prefix, _prefixes(condition))
    ]


def _when(condition: Mapping[str, object]) -> str:
    if "age" in condition:
        return f"after {condition['age']} days"
    return f"if {', '.join(f'{name} is {value}' for name, value in sorted(condition.items()))}"


_ABORT: Final = "AbortIncompleteMultipartUpload"
_ABOUT: Final = {"age", "matchesPrefix"}


class GcsLifecycle(BucketLifecycle):
    """Lifecycle rules of a bucket. A change requires an unchanged metageneration."""

    note: ClassVar = (
        "our uploads and the plugin's are resumable sessions, which Google ends after a week; the rule is for uploads "
        "by Google's XML API"
    )

    def __init__(self, store: GcsObjectStore) -> None:
        self._store = store

    def read(self) -> LifecycleState:
        """Read the rules with one request."""
        fields = "lifecycle,metageneration"
        properties = self._store.call("look", self._store.identity, lambda client: client.bucket_properties(fields))
        lifecycle = properties.get("lifecycle")
        try:
            shown = tuple(_rule_of(number, rule) for number, rule in enumerate(_rules_in(properties), 1))
        except ValueError as error:
            there = excerpt(lifecycle, 300)
            raise StoreError(f"the lifecycle rules of {self._store.identity} are not understood: {there}") from error
        return LifecycleState(shown, json.dumps(lifecycle) if lifecycle else "", str(properties["metageneration"]))

    def add_abort_rule(self, name: str, prefix: str, days: int, state: LifecycleState) -> None:  # noqa: ARG002  rules of GCS have no names
        """Add a rule. ``name`` is ignored, because Google's rules have no names."""
        lifecycle: dict[str, object] = json.loads(state.text or "{}")
        condition = {"age": days, **({"matchesPrefix": [prefix]} if prefix else {})}
        rule = {"action": {"type": _ABORT}, "condition": condition}
        changed = {**lifecycle, "rule": [*_rules_in({"lifecycle": lifecycle}), rule]}
        version = state.version or ""
        self._store.call("look", self._store.identity, lambda client: client.set_lifecycle(changed, version))


def _rule_of(number: int, rule: Mapping[str, object]) -> LifecycleRule:
    action, condition = _split_rule(rule)
    kind, age = str(action.get("type", "")), condition.get("age")
    shown = ", ".join(f"{name} {value}" for name, value in sorted(condition.items()) if name != "matchesPrefix")
    return LifecycleRule(
        name=f"rule {number}",
        is_enabled=True,
        prefixes=tuple(_prefixes(condition)),
        is_limited=bool(set(condition) - _ABOUT),
        action=f"{kind or 'nothing'}{f' ({shown})' if shown else ''}",
        aborts_after_days=age if kind == _ABORT and isinstance(age, int) and not isinstance(age, bool) else None,
        content=json.dumps(rule, sort_keys=True),
    )


def _rules_in(properties: Mapping[str, object]) -> list[Mapping[str, object]]:
    """Return the bucket's rules; raise ValueError if they are not a list of objects."""
    rules = _object(properties, "lifecycle").get("rule", [])
    if not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in cast("list[object]", rules)):
        raise ValueError(f"the rules are {rules!r:.80}, which is not a list of objects")
    return cast("list[Mapping[str, object]]", rules)


def _split_rule(rule: Mapping[str, object]) -> tuple[Mapping[str, object], Mapping[str, object]]:
    """Return the rule's action and its condition."""
    return _object(rule, "action"), _object(rule, "condition")


def _prefixes(condition: Mapping[str, object]) -> list[str]:
    prefixes = condition.get("matchesPrefix", [])
    return list(map(str, cast("list[object]", prefixes))) if isinstance(prefixes, list) else [str(prefixes)]


def _object(outer: Mapping[str, object], name: str) -> Mapping[str, object]:
    """Return the object ``outer[name]``, empty if absent; raise ValueError (see ``understood``) if the value is not an
    object."""
    value = outer.get(name, {})
    if not isinstance(value, dict):
        raise ValueError(f"{name} is {value!r:.80}, which is not a JSON object")  # noqa: TRY004  the answer is invalid
    return cast("dict[str, object]", value)


_DAY_S: Final = 86_400


def kept_sentences(properties: Mapping[str, object]) -> list[str]:
    """Return one sentence for each property of the bucket (JSON API) that keeps deleted objects."""
    kept: list[str] = []
    if _object(properties, "versioning").get("enabled"):
        kept.append(
            "the bucket has Object Versioning: deleted objects stay as noncurrent versions, and are billed, until a "
            "lifecycle rule or a person removes them"
        )
    soft_s = int(str(_object(properties, "softDeletePolicy").get("retentionDurationSeconds", 0)))
    if soft_s:
        kept.append(f"the bucket has soft delete: deleted objects stay, and are billed, for {soft_s / _DAY_S:g} days")
    held_s = int(str(_object(properties, "retentionPolicy").get("retentionPeriod", 0)))
    if held_s:
        kept.append(
            f"the bucket has a retention policy: objects younger than {held_s / _DAY_S:g} days cannot be deleted"
        )
    return kept
