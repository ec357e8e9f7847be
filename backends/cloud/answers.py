"""What an answer of a cloud must be, and what becomes of one that is not: told in one place for all of them.

An SDK believes its service: an answer without a field gives a KeyError somewhere, or nothing at all, and an empty page
is an empty listing. So what a caller relies on is asked for here, and what then goes wrong is one error of ours.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Final

from tieredstore.backends.base import ObjectInfo
from tieredstore.backends.cloud.errors import MalformedAnswerError
from tieredstore.errors import ConfigError, excerpt, quoted
from tieredstore.limits import MAX_INT64

_SHOWN: Final = 200
_BROKEN_OFF: Final = re.compile(rb"\s*(?:\xef\xbb\xbf)?<(?:\?xml[^>]*(?:>\s*(?:<[\w:]*)?)?|[\w:]*)")


@contextmanager
def understood(what: str) -> Generator[None]:
    """MalformedAnswerError for what fails in the block because an answer is not as its protocol says.

    The SDKs and what is made of their results raise these without any plan; none of them is raised by a body or by a
    caller's function here, since those run outside of requests.
    """
    try:
        yield
    except ConfigError:
        raise
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        # A sentence of the SDK's may hold the whole answer.
        text = excerpt(f"{type(error).__name__}: {error}", _SHOWN)
        raise MalformedAnswerError(f"{what}: the store's answer is not what its protocol says ({text})") from error


def shown_body(body: bytes) -> str:
    """An answer as a message shows it."""
    return quoted(body, _SHOWN) if body else "an empty body"


def breaks_off(body: bytes) -> bool:
    """Whether an XML document ends before its root has begun: its connection was lost, where no length tells it.

    The SDKs fail to parse it then, which is a passing failure; whatever else is no document was never meant as one.
    """
    return _BROKEN_OFF.fullmatch(body) is not None


def stated(name: str, value: object) -> str:
    """The text that an answer gives as ``name``; a ValueError, for ``understood``, if it gives none."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} is {value!r:.80}, and no text")
    return value


def stated_size(value: object) -> int:
    """The number of bytes that an answer gives; a ValueError, for ``understood``, if it gives none."""
    if not isinstance(value, int) or not 0 <= value <= MAX_INT64:
        raise ValueError(f"the size is {value!r:.80}, and no number of bytes")
    return value


def stated_ms(value: object) -> int | None:
    """A time in ms since the epoch, None where the answer has none; a ValueError, for ``understood``, for no time."""
    if value is None:
        return None
    if not isinstance(value, datetime):
        raise ValueError(f"the time is {value!r:.80}")  # noqa: TRY004  an answer's fault, not a caller's
    return round(value.timestamp() * 1000)


def stated_date(value: object) -> datetime | None:
    """The moment of a ``Date`` header, None where there is none; a ValueError, for ``understood``, for no moment."""
    if value is None:
        return None
    date = parsedate_to_datetime(stated("the Date", value))
    if date.tzinfo is None:
        raise ValueError(f"the Date is {value!r:.80}, without a time zone")
    return date


def in_order(what: str, infos: Iterable[ObjectInfo]) -> Iterator[ObjectInfo]:
    """The objects of a listing; StoreError where a key does not come after the one before it.

    Whoever reads a listing relies on its order: with another, objects would be overlooked in silence.
    """
    last = ""
    for info in infos:
        if info.key <= last:
            raise MalformedAnswerError(f"{what}: the store lists {info.key!r:.1100} after {last!r:.1100}: out of order")
        last = info.key
        yield info
