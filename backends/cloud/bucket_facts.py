"""What a cloud's bucket says of itself: its time, what it keeps, its own rules, who asks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from tieredstore.backends.base import ObjectStore, StoreAdmin
from tieredstore.backends.cloud.answers import stated_date
from tieredstore.backends.cloud.client import ClosableClient
from tieredstore.errors import ObjectNotFound, StoreError, StoreUnavailable
from tieredstore.process.deadline import Deadline

Client = TypeVar("Client", bound=ClosableClient)
Result = TypeVar("Result")


class BucketFacts(ObjectStore, StoreAdmin, Generic[Client]):
    """The part of a cloud's store that asks about the bucket, and not about an object."""

    @abstractmethod
    def call(
        self, operation: str, what: str, request: Callable[[Client], Result], *, deadline: Deadline | None = None
    ) -> Result:
        """``request`` on this process's client, within the deadline of a call; all errors are ours."""

    @abstractmethod
    def _date(self, client: Client) -> str | None:
        """The ``Date`` of an answer to a listing of one key: of the service itself, since a listing was checked."""

    @abstractmethod
    def _kept(self, client: Client) -> list[str]:
        """What of a deleted object the bucket keeps, a sentence each."""

    @abstractmethod
    def _rules(self, client: Client, prefix: str, /) -> list[str] | None:
        """The bucket's rules that take away what is under ``prefix``, a sentence each; None if that cannot be asked."""

    @abstractmethod
    def _caller(self, client: Client, /) -> str:
        """Whose requests these are, without any secret."""

    def now_ms(self) -> int | None:
        """The service's ``Date``, in whole seconds, as its times of writes are."""
        date = self.call("list", self.identity, lambda client: stated_date(self._date(client)))
        return None if date is None else round(date.timestamp() * 1000)

    def kept_after_delete(self) -> Sequence[str]:
        """A request or two about the bucket; that they are refused, as they may be to who may delete, is said."""
        try:
            return self.call("look", self.identity, self._kept)
        except StoreUnavailable:
            raise
        except (StoreError, ObjectNotFound) as error:
            return [f"whether the bucket keeps what is deleted could not be asked: {error}"]

    def rules_on(self, prefix: str) -> Sequence[str] | None:
        """A request about the bucket; None as well where it is refused, as it may be to who may read and write."""
        try:
            return self.call("look", self.identity, lambda client: self._rules(client, prefix))
        except StoreUnavailable:
            raise
        except (StoreError, ObjectNotFound):
            return None

    def caller(self) -> str:
        """What was chosen by the settings, or found by the SDK's own chain, when the client was opened."""
        return self.call("look", self.identity, self._caller)
