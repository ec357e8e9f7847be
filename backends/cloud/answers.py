"""Checks of a cloud's answers, and the error for a malformed one.

An SDK trusts its service: an answer without a field gives a KeyError somewhere, or nothing at all, and an empty page
looks like an empty listing. So the fields that a caller relies on are required here, and their absence is one error of
ours.
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
    """Raise MalformedAnswerError if the block fails because an answer breaks its protocol.

    The SDKs and the users of their results raise these errors unplanned. Bodies and callers' functions cannot raise
    them here, because they run outside of requests.
    """
    try:
        yield
    except ConfigError:
        raise
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        # A sentence of the SDK's may contain the whole answer.
        text = excerpt(f"{type(error).__name__}: {error}", _SHOWN)
        raise MalformedAnswerError(f"{what}: the store's answer is not what its protocol says ({text})") from error


def shown_body(body: bytes) -> str:
    """Return an answer as a message shows it."""
    return quoted(body, _SHOWN) if body else "an empty body"


def breaks_off(body: bytes) -> bool:
    """Return True if an XML document ends before its root begins: its connection broke, and no length shows it.

    The SDKs then fail to parse it, a transient failure; any other invalid document was never meant as one.
    """
    return _BROKEN_OFF.fullmatch(body) is not None


def stated(name: str, value: object) -> str:
    """Return the text of an answer's field ``name``; raise ValueError, for ``understood``, if it is missing."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} is {value!r:.80}, and no text")
    return value


def stated_size(value: object) -> int:
    """Return an answer's number of bytes; raise ValueError, for ``understood``, if it is missing."""
    if not isinstance(value, int) or not 0 <= value <= MAX_INT64:
        raise ValueError(f"the size is {value!r:.80}, and no number of bytes")
    return value


def stated_ms(value: object) -> int | None:
    """Return an answer's time in ms since the epoch, None without one; raise ValueError, for ``understood``, if
    invalid.
    """
    if value is None:
        return None
    if not isinstance(value, datetime):
        raise ValueError(f"the time is {value!r:.80}")  # noqa: TRY004  an answer's fault, not a caller's
    return round(value.timestamp() * 1000)


def stated_date(value: object) -> datetime | None:
    """Parse a ``Date`` header, None without one; raise ValueError, for ``understood``, if invalid."""
    if value is None:
        return None
    date = parsedate_to_datetime(stated("the Date", value))
    if date.tzinfo is None:
        raise ValueError(f"the Date is {value!r:.80}, without a time zone")
    return date


def in_order(what: str, infos: Iterable[ObjectInfo]) -> Iterator[ObjectInfo]:
    """Yield the objects of a listing; raise StoreError if a key does not come after the one before it.

    Readers of a listing rely on its order: otherwise they would silently miss objects.
    """
    last = ""
    for info in infos:
        if info.key <= last:
            raise MalformedAnswerError(f"{what}: the store lists {info.key!r:.1100} after {last!r:.1100}: out of order")
        last = info.key
        yield info
