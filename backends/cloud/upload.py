"""Skeleton of a write to a cloud, with one request or in parts. Handles conditions and lost answers."""

from __future__ import annotations

import logging
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Final, Generic, TypeVar

from tieredstore.backends.cloud.answers import understood
from tieredstore.backends.cloud.errors import MalformedAnswerError, PartsGoneError
from tieredstore.backends.cloud.upload_parts import Part, PartCutter
from tieredstore.backends.contract.staging import conflict_error, gone_error
from tieredstore.backends.values import Prepared
from tieredstore.errors import (
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreError,
    StoreUnavailableError,
)
from tieredstore.process.deadline import Deadline, Stall

if TYPE_CHECKING:
    from tieredstore.backends.cloud.options import CloudOptions
    from tieredstore.backends.cloud.store import CloudClient, CloudStore

_logger: Final = logging.getLogger(__name__)

Client = TypeVar("Client", bound="CloudClient")
Options = TypeVar("Options", bound="CloudOptions")
Result = TypeVar("Result")

WRITE_MARK: Final = "tieredstore-write"
"""Name of the metadata field for the mark, a random id of the write that made an object. After a lost answer, a writer
looks for its own mark.
"""


@dataclass(frozen=True, slots=True)
class Condition:
    """Condition of a write: the key has no object, or its object has this etag. The default is no condition."""

    is_absent: bool = False
    etag: str | None = None

    @property
    def broken(self) -> str:
        """Return the end of the error message for a refused write: it describes the object now under the key."""
        if self.is_absent:
            return "exists already"
        return f"is gone, or no longer has the etag {self.etag}"


ANY: Final = Condition()
"""No condition."""
IF_ABSENT: Final = Condition(is_absent=True)
"""The key must have no object."""


@dataclass(frozen=True, slots=True)
class Stored:
    """The object under a key, as far as the store describes it.

    ``mark`` identifies the write that made the object; ``mark`` is None on a server that drops metadata. ``digest`` is
    the cloud's own digest of the content. ``is_earlier`` is True if an earlier request of this write made the object.
    """

    etag: str
    size: int = 0
    digest: str | None = None
    mark: str | None = None
    is_earlier: bool = False


@dataclass(frozen=True)
class Upload(ABC, Generic[Client, Options]):
    """One ``put`` or ``replace``. ``stall`` limits the time without progress.

    Each write has its own ``mark``. The store may refuse a write because of an object that the same write made. This
    happens if an earlier attempt's answer was lost, or if a proxy sent the request twice. The object's mark shows if
    this is so. With ``is_shared``, other writers may use the same mark.

    On servers that keep no marks, compare the content instead, but only after a lost answer. Otherwise two writers of
    equal bytes would both succeed.
    """

    store: CloudStore[Client, Options]
    key: str
    condition: Condition
    stall: Stall
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    is_shared: bool = False

    parts_gone: ClassVar[str] = "the upload disappeared before it was completed"
    """Message for the error that the service no longer holds the parts."""

    looks_first: ClassVar[bool] = True
    """True to check the condition before a write in parts begins. The service checks the condition too, when the write
    ends."""

    @property
    def options(self) -> Options:
        """The options of the store."""
        return self.store.options

    @property
    def what(self) -> str:
        """The object's name for errors."""
        return self.store.name_object(self.key)

    def write(self, cutter: PartCutter) -> str:
        """Write all parts of ``cutter``; return the object's etag."""
        first = next(cutter)
        if first.is_last:
            return self.write_whole(first.data)
        if self.looks_first and not self.is_shared and self._is_broken():
            # The service would refuse the write too, but only after all bytes were sent.
            raise PreconditionFailedError(f"{self.what} {self.condition.broken}")
        return self.write_parts(cutter, first)

    def _is_broken(self) -> bool:
        """Return True if the stored object now contradicts the write's condition (absent, or a given etag)."""
        if self.condition.is_absent:
            return self.store.exists(self.key)
        return self.condition.etag is not None and self.step(self.look_up).etag != self.condition.etag

    @abstractmethod
    def write_whole(self, data: memoryview) -> str:
        """Write the object with one request; return its etag."""

    @abstractmethod
    def write_parts(self, cutter: PartCutter, first: Part) -> str:
        """Write the object part by part; return its etag. On failure, remove everything removable."""

    @abstractmethod
    def prepare(self, cutter: PartCutter, staging_prefix: str) -> tuple[str, tuple[str, ...]]:
        """Send all parts, without making the object visible; return ``place`` and ``parts`` of a ``Prepared``. On
        failure, remove everything removable.

        A cloud that cannot hide parts writes an object under ``staging_prefix``.
        """

    @abstractmethod
    def publish(self, prepared: Prepared) -> None:
        """Publish a prepared object under this write's mark. Another process may have prepared it."""

    @abstractmethod
    def look_up(self, client: Client) -> Stored:
        """Return the object under the key, with one request without a body."""

    def take_back(self, client: Client, stored: Stored) -> None:
        """Delete the object if it is still the one that ``stored`` describes; an absent object is no error."""
        try:
            with understood(self.what), self.store.service.translate_errors(self.what):
                self.delete_unchanged(client, stored.etag)
        except (PreconditionFailedError, ObjectNotFoundError):
            _logger.info("%s: the damaged object was gone already", self.what)

    @abstractmethod
    def delete_unchanged(self, client: Client, etag: str) -> None:
        """Delete the object if it still has the etag, with one request."""

    def step(
        self, request: Callable[[Client], Result], what: str | None = None, deadline: Deadline | None = None
    ) -> Result:
        """Run one request of the write and retry transient failures; raise PreconditionFailedError if the condition
        fails.

        ``deadline`` is the deadline of an enclosing step of several requests.
        """
        what = what or self.what
        try:
            with self.stall.under_way() as end:
                result = self.store.call("write", what, request, deadline=end.sooner(deadline))
                self.stall.progress()
                return result
        except PartsGoneError as error:
            raise StoreUnavailableError(f"{what}: {self.parts_gone}: {error}") from error
        except (PreconditionFailedError, ObjectNotFoundError) as error:
            if self.condition == ANY or (self.condition.is_absent and isinstance(error, ObjectNotFoundError)):
                raise
            raise PreconditionFailedError(f"{what} {self.condition.broken}: nothing was written") from error

    def finish(
        self,
        send: Callable[[Client], Stored],
        size: int,
        is_content: Callable[[Client, Stored], bool],
        deadline: Deadline | None = None,
        *,
        is_publication: bool = False,
    ) -> Stored:
        """Complete an object of ``size`` bytes by ``send``, the last request of the write.

        ``send`` returns the object's description from the answer, or raises MalformedAnswerError if the answer proves
        nothing. After that error or a refusal, request the object's description. If this write made the object, the
        write has succeeded. ``is_content`` compares an object with the written content.

        With ``is_publication``, another process may already have completed the object. Raise PreparedGoneError if the
        parts are gone and the key has no object.
        """
        is_lost = is_publication or self.is_shared
        can_take_back = not is_lost

        def look(client: Client, *, by_content: bool) -> Stored | None:
            return self._find_ours(client, size, is_content if by_content else None, can_take_back=can_take_back)

        def once(client: Client) -> Stored:
            nonlocal is_lost
            try:
                with understood(self.what), self.store.service.translate_errors(self.what):
                    return send(client)
            except (PreconditionFailedError, ObjectNotFoundError, PartsGoneError) as refusal:
                stored = look(client, by_content=is_lost)
                if stored is None:
                    if is_publication and isinstance(refusal, PartsGoneError):
                        raise (conflict_error if self.store.exists(self.key) else gone_error)(self.what) from refusal
                    raise
                _logger.info("%s: an earlier request has written the object (%s)", self.what, refusal)
            except MalformedAnswerError as answer:
                stored = look(client, by_content=True)
                if stored is None:
                    raise StoreError(f"{answer}; the object was not written") from answer
                _logger.info("%s: the object was written, although the answer did not say so (%s)", self.what, answer)
            except StoreUnavailableError:
                is_lost = True
                raise
            return stored

        return self.step(once, deadline=deadline)

    def _find_ours(
        self,
        client: Client,
        size: int,
        is_content: Callable[[Client, Stored], bool] | None,
        *,
        can_take_back: bool,
    ) -> Stored | None:
        """Return the object if this write made it, else None. Compare the object's mark or, if the object has no mark,
        call ``is_content``.
        """
        try:
            with understood(self.what), self.store.service.translate_errors(self.what):
                stored = self.look_up(client)
        except ObjectNotFoundError:
            return None
        is_marked = stored.mark == self.mark
        if is_marked and stored.size != size and stored.etag and can_take_back:
            # Remove the damaged object that this write made, because the object would make every later write with
            # ``if_absent`` fail.
            self.take_back(client, stored)
            raise StoreUnavailableError(
                f"{self.what}: the store has {stored.size} bytes of a write of {size}: the body was damaged in transit"
            )
        ours = is_marked or (stored.mark is None and is_content is not None and is_content(client, stored))
        return replace(stored, is_earlier=True) if ours and stored.size == size and stored.etag else None
