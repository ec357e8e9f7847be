"""Store of a cloud: everything except the cloud's own protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, islice
from typing import TYPE_CHECKING, Final, Generic, Protocol, Self, TypeVar

from tieredstore.backends.base import Body, Buffer, ObjectInfo, ObjectStore, Prepared, StoreAdmin
from tieredstore.backends.cloud.answers import parse_date, require_text, understood
from tieredstore.backends.cloud.errors import MalformedAnswerError, MaybeNoBucketError, NotSupportedError, no_bucket
from tieredstore.backends.cloud.options import CloudOptions
from tieredstore.backends.cloud.upload import ANY, IF_ABSENT, Condition, Upload
from tieredstore.backends.cloud.upload_parts import cut
from tieredstore.backends.contract.bodies import Digest, byte_view, closing_body
from tieredstore.backends.contract.checks import (
    TooLargeError,
    check_small,
    check_whole,
    is_empty_request,
    raise_failures,
)
from tieredstore.backends.contract.staging import check_mark
from tieredstore.backends.http.body import HttpAnswer
from tieredstore.backends.http.sockets import within
from tieredstore.errors import (
    AccessDeniedError,
    InvalidKeyError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreError,
    StoreUnavailableError,
    TieredStoreError,
    excerpt,
)
from tieredstore.process.deadline import Deadline, Stall
from tieredstore.process.forks import PerProcess
from tieredstore.process.retry import Attempt, RetryPolicy
from tieredstore.process.thread_pool import ThreadPool

if TYPE_CHECKING:
    from tieredstore.config import Settings


Result = TypeVar("Result")


class CloudClient(Protocol):
    """One process's client of one bucket. Thread-safe. Its methods send one request each, and raise errors of the SDK
    and of the network.
    """

    def close(self) -> None:
        """Close all connections."""
        ...

    def read(self, key: str, start: int, stop: int | None, take: Callable[[HttpAnswer], Result], what: str) -> Result:
        """Request ``start:stop``. Check the answer's range and size, then return the result of ``take``."""
        ...

    def head(self, key: str) -> ObjectInfo:
        """Return one object's metadata."""
        ...

    def check_bucket(self) -> None:
        """Raise ObjectNotFoundError if the bucket does not exist. Called after a ``MaybeNoBucketError``."""
        ...

    def date(self) -> str | None:
        """Return the ``Date`` header of a listing of one key. Check that the answer is a listing, and not a page that a
        proxy sent.
        """
        ...


BUCKET_REMEMBERED_S: Final = 60.0
"""Seconds for which a store remembers that its bucket exists."""


_HAIR_S: Final = 0.01
"""Tolerance in seconds: a wait that should end at the deadline may end this much earlier."""


Client = TypeVar("Client", bound=CloudClient)
Options = TypeVar("Options", bound=CloudOptions)
Item = TypeVar("Item")
Token = TypeVar("Token")


@dataclass(frozen=True, slots=True)
class Service(Generic[Client, Options]):
    """What distinguishes one cloud from another, besides the requests of its client."""

    read_options: Callable[[Settings], Options]
    """Make the options from the cloud's settings; raise ConfigError if a setting is missing or invalid."""
    identity: Callable[[Options], str]
    """Return the URL of the bucket; raise ConfigError if the options give none."""
    open_client: Callable[[Options], Client]
    """Open a client; raise AccessDeniedError or ConfigError if its credentials are not available."""
    translate_errors: Callable[[str], AbstractContextManager[None]]
    """Convert errors of the SDK and of the network to this package's errors, whose messages name the argument."""
    check_key: Callable[[str], None]
    """Raise InvalidKeyError for a key that the service would refuse or change."""
    is_etag: Callable[[str], bool]
    """Return True if the text can be an etag; any other text would change the meaning of a condition."""
    kept: Callable[[Client], list[str]]
    """Return one sentence for each way the bucket keeps deleted objects."""
    rules: Callable[[Client, str], list[str] | None]
    """Return one sentence for each rule that removes objects under a prefix; None if the service does not show its
    rules."""
    caller: Callable[[Client], str]
    """Return the identity that requests use, without any secret."""
    upload: type[Upload[Client, Options]]
    """The class that writes objects."""
    replaces_whole: bool = False
    """True if ``replace`` must write a buffer with one request, because some servers ignore conditions on multipart
    uploads."""
    bucket_setting: str = "the bucket's name"
    """Name of the setting to correct if the bucket does not exist."""


class CloudStore(ObjectStore, StoreAdmin, Generic[Client, Options]):
    """One bucket of a cloud. Thread-safe, picklable and safe to fork, because each process makes its own client.

    This class adds retries, deadlines and translated errors to the requests of ``service`` and of its client. A
    subclass names the service, and implements ``list`` and ``delete``.
    """

    service: Service[Client, Options]

    def __init__(self, options: Options, *, retries: RetryPolicy | None = None) -> None:
        """Make the store; ``retries`` replaces the retry policy of ``options``, for tests without pauses."""
        self.options = options
        policy = retries or RetryPolicy(attempts=options.attempts, timeout_s=options.call_timeout_s)
        self.retries = replace(policy, attempt_timeout_s=options.attempt_timeout_s)
        self._identity = self.service.identity(options)
        self._clients = PerProcess(partial(self.service.open_client, options), lambda client: client.close())
        self._bucket_stands_until_s = 0.0

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Make the store from ``storage.*``; raise ConfigError if a setting is missing or invalid."""
        return cls(cls.service.read_options(settings))

    def __reduce__(self) -> tuple[Callable[[], Self], tuple[()]]:
        return partial(type(self), self.options, retries=self.retries), ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.identity!r})"

    @property
    def identity(self) -> str:
        """The bucket's URL, at the configured endpoint if there is one."""
        return self._identity

    def close(self) -> None:
        """Close this process's connections."""
        self._clients.close()

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> None:
        """Write a body up to the size of a part with one request, and a longer body in parts."""
        with cut(body, self.options.part_size) as cutter:
            self.service.check_key(key)
            self._make_upload(key, IF_ABSENT if if_absent else ANY).write(cutter)

    def put_once(self, key: str, body: Buffer, mark: str) -> None:
        """Write the object as ``put`` does. If the key is taken, send a HEAD request to learn which write made the
        object."""
        self.service.check_key(key)
        with byte_view(body) as view, cut(view, self.options.part_size) as cutter:
            replace(self._make_upload(key, IF_ABSENT), mark=check_mark(mark), is_shared=True).write(cutter)

    def replace(self, key: str, body: Body, etag: str) -> str:
        """Write the object as ``put`` does, if the etag of the stored object is ``etag``."""
        part_size = self.options.part_size
        if self.service.replaces_whole and isinstance(body, bytes | bytearray | memoryview):
            part_size = max(1, memoryview(body).nbytes)
        with cut(body, part_size) as cutter:
            self.service.check_key(key)
            if not self.service.is_etag(etag):
                named = self.name_object(key)
                raise PreconditionFailedError(f"{named}: {excerpt(etag)!r} is not the etag of any object")
            return self._make_upload(key, Condition(etag=etag)).write(cutter)

    def prepare(self, key: str, body: Body, *, staging_prefix: str) -> Prepared:
        """Send one request per part. Some clouds also need a request to begin the upload.

        A cloud that cannot hide parts writes an object under ``staging_prefix``.
        """
        digest = Digest()
        with closing_body(body), cut(digest.of(body), self.options.part_size) as cutter:
            self.service.check_key(key)
            upload = self._make_upload(key, IF_ABSENT)
            place, parts = upload.prepare(cutter, staging_prefix)
        return Prepared(key, digest.size, digest.sha256, place, parts, upload.mark)

    def publish(self, prepared: Prepared) -> None:
        """Publish with one request. If the service refuses it, examine the object with a second request.

        A staged object is copied on the server.
        """
        self.service.check_key(prepared.key)
        replace(self._make_upload(prepared.key, IF_ABSENT), mark=prepared.mark).publish(prepared)

    def _make_upload(self, key: str, condition: Condition) -> Upload[Client, Options]:
        self._have_client("write")
        return self.service.upload(self, key, condition, Stall(self.options.stall_timeout_s, self.retries.monotonic))

    def exists(self, key: str) -> bool:
        """Return True if the object exists."""
        try:
            self.head(key)
        except ObjectNotFoundError:
            return False
        return True

    def get(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        """Read the range; retry after a truncated or damaged answer."""
        self.service.check_key(key)
        if is_empty_request(start, stop):
            return b""
        return self._get(key, start, stop)

    def get_small(self, key: str, most: int) -> bytes | None:
        """Read the object as ``get`` does. If it has more than ``most`` bytes, read only the response headers."""
        self.service.check_key(key)
        try:
            return self._get(key, 0, None, most)
        except TooLargeError:
            return None

    def _get(self, key: str, start: int, stop: int | None, most: int | None = None) -> bytes:
        what = self.name_object(key)

        def take(answer: HttpAnswer) -> bytes:
            check_small(answer.size, most)
            return answer.read()

        return self.call("get", what, lambda client: client.read(key, start, stop, take, what))

    def get_into(self, key: str, start: int, buffer: bytearray | memoryview) -> None:
        """Read the range as ``get`` does, straight from the connection into ``buffer``."""
        self.service.check_key(key)
        stop = start + memoryview(buffer).nbytes
        if not is_empty_request(start, stop):
            self._fill(key, start, stop, buffer)

    def get_whole(self, key: str, buffer: bytearray | memoryview) -> None:
        """Read the whole object straight from the connection into ``buffer``, as ``get_into`` does."""
        self.service.check_key(key)
        self._fill(key, 0, None, buffer)

    def _fill(self, key: str, start: int, stop: int | None, buffer: bytearray | memoryview) -> None:
        def take(answer: HttpAnswer) -> None:  # fill the buffer again on each attempt
            check_whole(key, answer.size, len(view))
            answer.fill(view)

        what = self.name_object(key)
        with byte_view(buffer) as view:
            self.call("get", what, lambda client: client.read(key, start, stop, take, what))

    def head(self, key: str) -> ObjectInfo:
        """Return metadata with one request, or two for an absent object: the second shows if the bucket exists."""
        self.service.check_key(key)

        def ask(client: Client) -> ObjectInfo:
            info = client.head(key)
            require_text("the etag", info.etag)
            return info

        return self.call("head", self.name_object(key), ask)

    # Administrative questions

    def now_ms(self) -> int | None:
        """Return the time in the service's ``Date`` header. The header has whole seconds, like modification times."""
        date = self.call("list", self.identity, lambda client: parse_date(client.date()))
        return None if date is None else round(date.timestamp() * 1000)

    def kept_after_delete(self) -> Sequence[str]:
        """Read the bucket's settings with one or two requests. If the service refuses, for example for lack of a
        permission, return a sentence that says so.
        """
        try:
            return self.call("look", self.identity, self.service.kept)
        except StoreUnavailableError:
            raise
        except (StoreError, ObjectNotFoundError) as error:
            return [f"could not find out if the bucket keeps deleted objects: {error}"]

    def rules_on(self, prefix: str) -> Sequence[str] | None:
        """Read the bucket's rules with one request. Return None also if the service refuses, because a reader may lack
        the permission.
        """
        try:
            return self.call("look", self.identity, lambda client: self.service.rules(client, prefix))
        except StoreUnavailableError:
            raise
        except (StoreError, ObjectNotFoundError):
            return None

    def caller(self) -> str:
        """Return the identity from the settings, or the one that the SDK's credential chain found."""
        return self.call("look", self.identity, self.service.caller)

    # Helpers of the operations above

    def name_object(self, key: str) -> str:
        """Return the object's name for errors."""
        return f"{key!r} of {self.identity}"

    def call(
        self, operation: str, what: str, request: Callable[[Client], Result], *, deadline: Deadline | None = None
    ) -> Result:
        """Run ``request`` on this process's client; retry transient failures and translate all errors.

        ``operation`` names the request in metrics of attempts; ``what`` names the request's object in error messages.
        ``deadline`` is the deadline of an enclosing operation.
        """
        self._have_client(operation)
        end = self.retries.deadline().sooner(deadline)
        try:
            return self._try_request(operation, what, request, end)
        except MaybeNoBucketError as error:
            raise self._absence(error, end) from error
        except MalformedAnswerError as error:
            raise StoreError(str(error)) from error

    def _try_request(
        self, operation: str, what: str, request: Callable[[Client], Result], deadline: Deadline
    ) -> Result:
        def once(attempt: Attempt) -> Result:
            with within(attempt.deadline):
                client = self._clients.get()
                try:
                    with understood(what), self.service.translate_errors(what):
                        return request(client)
                except StoreUnavailableError as error:
                    # Say which of our limits was reached, because the network's message ("timed out") does not.
                    reason = attempt.deadline.reason
                    if attempt.deadline.remaining_s() > _HAIR_S or reason in str(error):
                        raise
                    raise type(error)(f"{error}; the call {reason}") from error

        return self.retries.call(operation, once, deadline=deadline)

    def _have_client(self, operation: str) -> None:
        """Open this process's client if none is open. The deadline for this may be later than the deadline of a short
        call.

        A longer deadline is needed because importing an SDK takes time, and opening its client may request a token.
        """

        def open_client(attempt: Attempt) -> None:
            with within(attempt.deadline):
                try:
                    self._clients.get()
                except AccessDeniedError as error:
                    # After the deadline, report the timeout instead of missing credentials, because an SDK reports
                    # missing credentials even if only its search for them timed out.
                    if attempt.deadline.remaining_s() > _HAIR_S:
                        raise
                    raise StoreUnavailableError(f"{error}; the look-up {attempt.deadline.reason}") from error

        if not self._clients.is_open:
            self.retries.call(operation, open_client)

    def _absence(self, error: MaybeNoBucketError, deadline: Deadline) -> TieredStoreError:
        """Find out if only the object is absent, or its whole bucket. Return a StoreError for an absent bucket, because
        every other key would fail too.

        The store remembers for a minute that the bucket exists, so that a search for many absent objects costs one
        extra request.
        """
        now = self.retries.monotonic()
        if now >= self._bucket_stands_until_s:
            try:
                self._try_request("look", self.identity, lambda client: client.check_bucket(), deadline)
            except ObjectNotFoundError:
                return no_bucket(self.identity, self.service.bucket_setting)
            except AccessDeniedError:
                # The caller lacks the permission to ask about the bucket, so assume that only the object is absent.
                pass
            self._bucket_stands_until_s = now + BUCKET_REMEMBERED_S
        return ObjectNotFoundError(str(error))

    def stall(self) -> Stall:
        """Return a stall timeout for an operation of several requests that begins now. The timeout is as long as that
        of one call.
        """
        return Stall(self.retries.timeout_s, self.retries.monotonic)

    def pages(
        self, what: str, page: Callable[[Token | None, Client], tuple[Sequence[Item], Token | None]]
    ) -> Iterator[Item]:
        """Yield the items of all pages, lazily. ``page`` requests the page for a token, which the previous page
        contained.

        No listing runs forever: consecutive pages without items share one deadline, and a repeated token is a
        StoreError.
        """
        self._have_client("list")
        stall = self.stall()
        token = landmark = None
        for number in count(1):
            with stall.under_way() as deadline:
                items, token = self.call("list", what, partial(page, token), deadline=deadline)
                if items:
                    stall.progress()
            yield from items
            if not token:
                return
            if token == landmark:
                raise StoreError(f"{what}: the store's listing does not end: it repeated a continuation token")
            # To detect a cycle of pages, remember one token at a time: that of page 1, then of page 2, 4, 8 and so on.
            # A cycle repeats one of these tokens.
            if number.bit_count() == 1:
                landmark = token

    def check_listing(
        self, infos: Iterable[ObjectInfo], prefix: str, start_after: str | None, hint: str = ""
    ) -> Iterator[ObjectInfo]:
        """Yield the objects of a listing that the caller of ``list`` wants. If they are not sorted, raise StoreError
        with ``hint`` at its end: readers rely on the order, and would silently miss objects."""
        last = ""
        for info in infos:
            # Drop unwanted keys, because some services include the key ``start_after`` or ignore this parameter, and
            # some ignore the prefix.
            if not info.key.startswith(prefix) or (start_after is not None and info.key <= start_after):
                continue
            if info.key <= last:
                shown = f"{info.key!r:.1100} after {last!r:.1100}"
                raise StoreError(f"{self.identity}: the store lists {shown}: out of order{hint}")
            last = info.key
            yield info

    def delete_batches(
        self, keys: Iterable[str], delete: Callable[[Sequence[str]], Sequence[TieredStoreError]], size: int = 1000
    ) -> None:
        """Delete batch by batch; continue after a key that cannot be deleted.

        ``delete`` deletes a batch of at most ``size`` valid keys, and returns an error for each key that still exists.
        """
        failures: list[TieredStoreError] = []
        remaining = iter(keys)
        while batch := list(islice(remaining, size)):
            # Remove duplicates, because some servers refuse a request with a repeated key.
            valid: dict[str, None] = {}
            for key in batch:
                try:
                    self.service.check_key(key)
                except InvalidKeyError as error:
                    failures.append(error)
                else:
                    valid[key] = None
            if valid:
                self._have_client("delete")
                failures += delete(list(valid))
        raise_failures(failures)

    def delete_together(
        self, keys: Sequence[str], delete: Callable[[Client, Sequence[str]], Mapping[str, TieredStoreError]]
    ) -> list[TieredStoreError]:
        """Delete keys with one request; return an error for each key that still exists.

        ``delete`` sends the request, and returns the errors in the answer by key. Repeat it for the keys with transient
        errors. Raise NotSupportedError if the server does not support the request.
        """
        failures: dict[str, TieredStoreError] = {}
        left = keys

        def attempt(client: Client) -> None:
            nonlocal left
            errors = delete(client, left)
            failures.update((key, error) for key, error in errors.items() if not error.retryable)
            passing = {key: error for key, error in errors.items() if error.retryable}
            if passing:
                # If an error names none of the keys, send all again, because any of them may still exist.
                if passing.keys() <= set(left):
                    left = list(passing)
                raise next(iter(passing.values()))

        try:
            self.call("delete", f"{len(keys)} objects of {self.identity}", attempt)
        except NotSupportedError:
            raise
        except TieredStoreError as error:
            failures.update((key, error) for key in left if key not in failures)
        return list(failures.values())

    def delete_singly(
        self, keys: Sequence[str], delete: Callable[[Client, str], object], parallelism: int, stall: Stall
    ) -> Sequence[TieredStoreError]:
        """Delete each key by a request of its own, which ``delete`` sends; return an error for each key that still
        exists.

        Stop if the store answers no deletion within the timeout ``stall``.
        """

        def failure(key: str) -> TieredStoreError | None:
            with stall.under_way() as deadline:
                try:
                    self.call("delete", self.name_object(key), lambda client: delete(client, key), deadline=deadline)
                except TieredStoreError as error:
                    if error.retryable:
                        return error
                    stall.progress()
                    return None if isinstance(error, ObjectNotFoundError) else error
                stall.progress()
                return None

        if not keys:
            return []
        with ThreadPool(min(parallelism, len(keys)), "tieredstore-delete") as pool:
            return [error for error in pool.map(failure, keys) if error is not None]


def concerns(prefix: str, of_rule: Iterable[str]) -> bool:
    """Return True if a rule for the prefixes ``of_rule`` (empty: for all keys) applies to keys under ``prefix``."""
    prefixes = list(of_rule)
    return not prefixes or any(one.startswith(prefix) or prefix.startswith(one) for one in prefixes)
