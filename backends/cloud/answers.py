"""Checks of a cloud's answers, and the error for a malformed one.

SDKs do not check answers. If a field is missing, they raise a KeyError or no error. For example, they take a malformed
page for an empty listing. So this module checks that an answer has the fields that the caller needs, and raises
MalformedAnswerError otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Final

from tieredstore.backends.cloud.errors import MalformedAnswerError
from tieredstore.errors import ConfigError, excerpt, quote
from tieredstore.limits import MAX_INT64

_SHOWN: Final = 200
_BROKEN_OFF: Final = re.compile(rb"\s*(?:\xef\xbb\xbf)?<(?:\?xml[^>]*(?:>\s*(?:<[\w:]*)?)?|[\w:]*)")


@contextmanager
def understood(what: str) -> Generator[None]:
    """Raise MalformedAnswerError if the block fails because the service's answer is malformed.

    An unexpected value makes an SDK, or code that reads the SDK's answer, fail with errors such as KeyError. The block
    converts these errors. Do not read objects' bodies or call callers' functions inside the block, because errors of
    such code say nothing about the answer.
    """
    try:
        yield
    except ConfigError:
        raise
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        # Shorten the SDK's message, which may contain the whole answer.
        text = excerpt(f"{type(error).__name__}: {error}", _SHOWN)
        raise MalformedAnswerError(f"{what}: the store's answer breaks its protocol ({text})") from error


def show_body(body: bytes) -> str:
    """Shorten an answer's body for a message."""
    return quote(body, _SHOWN) if body else "an empty body"


def breaks_off(body: bytes) -> bool:
    """Return True if an XML document ends before its root element begins. This happens if the connection breaks during
    an answer without a Content-Length.

    The SDK's parser fails on such a document, but a retry may succeed. For any other invalid document a retry is
    useless, because it was never a valid answer.
    """
    return _BROKEN_OFF.fullmatch(body) is not None


def require_text(name: str, value: object) -> str:
    """Return the field ``name`` of an answer; raise ValueError (see ``understood``) if it is missing."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} is {value!r:.80}, which is not text")
    return value


def require_size(value: object) -> int:
    """Return a number of bytes from an answer; raise ValueError (see ``understood``) if it is missing."""
    if not isinstance(value, int) or not 0 <= value <= MAX_INT64:
        raise ValueError(f"the size is {value!r:.80}, which is not a number of bytes")
    return value


def parse_ms(value: object) -> int | None:
    """Return an answer's time in ms since the epoch; None if the time is missing. Raise ValueError (see ``understood``)
    if the time is invalid."""
    return None if value is None else require_ms(value)


def require_ms(value: object) -> int:
    """Return an answer's time in ms since the epoch; raise ValueError (see ``understood``) if it is missing."""
    if not isinstance(value, datetime):
        raise ValueError(f"the time is {value!r:.80}, which is not a date")  # noqa: TRY004  see ``understood``
    return round(value.timestamp() * 1000)


def parse_date(value: object) -> datetime | None:
    """Parse a ``Date`` header; return None if the header is missing. Raise ValueError (see ``understood``) if the date
    is invalid."""
    if value is None:
        return None
    date = parsedate_to_datetime(require_text("the Date", value))
    if date.tzinfo is None:
        raise ValueError(f"the Date is {value!r:.80}, without a time zone")
    return date
