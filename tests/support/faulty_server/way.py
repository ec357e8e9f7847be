"""A way to lie: to which requests, by which answer, and what a store must make of it."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from tests.support.faulty_server.service import Cloud, Service, Step
from tests.support.faulty_server.wire import Answer, Reply, Request
from tieredstore.errors import (
    AccessDeniedError,
    ObjectNotFoundError,
    PreconditionFailedError,
    RangeNotSatisfiableError,
    StoreError,
    StoreThrottledError,
    StoreUnavailableError,
    TieredStoreError,
)


class Must(enum.Enum):
    """What a call must come to whose requests are answered in a way, each time that they are tried.

    The call ends within its deadline in any case, an upload that failed is aborted (where the server lets it), and
    no manifest is ever written before its data.
    """

    RIGHT = "succeeds, and rightly"
    REFUSED = "`StoreError`, at once"
    UNAVAILABLE = "`StoreUnavailableError`, after all tries"
    THROTTLED = "`StoreThrottledError`, after all tries"
    DENIED = "`AccessDenied`, at once"
    ABSENT = "`ObjectNotFoundError`, at once"
    TAKEN = "`PreconditionFailed`, at once"
    SHORT = "`RangeNotSatisfiableError`, at once"

    @property
    def error(self) -> type[TieredStoreError] | None:
        """The class of the error, and not one of those that derive from it; None for a success."""
        return _ERRORS.get(self)


_ERRORS: Mapping[Must, type[TieredStoreError]] = {
    Must.REFUSED: StoreError,
    Must.UNAVAILABLE: StoreUnavailableError,
    Must.THROTTLED: StoreThrottledError,
    Must.DENIED: AccessDeniedError,
    Must.ABSENT: ObjectNotFoundError,
    Must.TAKEN: PreconditionFailedError,
    Must.SHORT: RangeNotSatisfiableError,
}


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request that is to be answered."""

    request: Request
    step: Step
    service: Service

    def honest(self) -> Reply:
        """Do what was asked; the honest answer. A way that does not call this leaves the objects as they are."""
        return self.service.answer(self.request)


@dataclass(frozen=True, slots=True)
class Way:
    """One way to lie, on some clouds, to the requests of some steps: all of them, as often as they come.

    ``answer`` gives a whole answer or its pieces; ``must`` is what a call comes to that needs such a request.
    """

    name: str
    clouds: Collection[Cloud]
    steps: Collection[Step]
    must: Must
    answer: Callable[[Exchange], Answer] = field(repr=False)


def rewritten(pattern: str, replacement: str, *, count: int = 0) -> Callable[[Exchange], Answer]:
    """Return the honest answer, ``pattern`` in its body replaced as text: a lie need be no document any more."""
    compiled = re.compile(pattern.encode(), re.DOTALL)

    def answer(exchange: Exchange) -> Answer:
        reply = exchange.honest()
        return reply.changed(body=compiled.sub(replacement.encode(), reply.body, count=count))

    return answer
