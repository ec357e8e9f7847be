"""One kind of wrong answer: the requests it applies to, the answer, and the result that a store must report."""

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
    """Required result of a call if the server answers each of its requests, at each attempt, in the same way.

    In any case, the call ends within its deadline. A failed upload is aborted, if the server permits. No manifest is
    written before its data.
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
        """Exact class of the error that the call must raise; None if it must succeed."""
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
    """Request to be answered."""

    request: Request
    step: Step
    service: Service

    def honest(self) -> Reply:
        """Execute the request and return the honest answer. Without this call, the objects stay unchanged."""
        return self.service.answer(self.request)


@dataclass(frozen=True, slots=True)
class Way:
    """One kind of wrong answer, on some clouds, to all requests of some steps.

    ``answer`` gives a whole answer or its pieces; ``must`` is the required result of a call that needs such a request.
    """

    name: str
    clouds: Collection[Cloud]
    steps: Collection[Step]
    must: Must
    answer: Callable[[Exchange], Answer] = field(repr=False)


def rewritten(pattern: str, replacement: str, *, count: int = 0) -> Callable[[Exchange], Answer]:
    """Return the honest answer with ``pattern`` replaced in its body as text; the result may be malformed."""
    compiled = re.compile(pattern.encode(), re.DOTALL)

    def answer(exchange: Exchange) -> Answer:
        reply = exchange.honest()
        return reply.changed(body=compiled.sub(replacement.encode(), reply.body, count=count))

    return answer
