"""Parses positions in logs: offsets and times, in the same syntax in Python and on the command line."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from typing import Final, TypeAlias

from tieredstore.errors import ConfigError, excerpt, quote
from tieredstore.limits import MAX_OFFSET
from tieredstore.model import EPOCH, AtTime, check_offset

GivenPlace: TypeAlias = "int | datetime | date | str | AtTime | None"
"""An offset, a time with its zone, a day (UTC), or one of these as text. None stands for the log's own start or end.
"""

Clock: TypeAlias = Callable[[], datetime]

_OFFSET: Final = re.compile(r"\d{1,19}", re.ASCII)
_NEGATIVE: Final = re.compile(r"-\d{1,19}", re.ASCII)
_MILLISECONDS: Final = re.compile(r"@(\d{1,18})", re.ASCII)
_DURATION: Final = re.compile(r"(\d{1,9})(s|m|h|d)", re.ASCII)
_AGO: Final = re.compile(r"-(\d{1,9})(s|m|h|d)", re.ASCII)
_OF_TODAY: Final = re.compile(r"\d{1,2}:\d{2}(:\d{2})?", re.ASCII)
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_EXAMPLES: Final = "1234, 2026-01-31, 2026-01-31T08:00Z, 10:00, yesterday, -1h, now or @1769846400000"


def _now() -> datetime:
    return datetime.now(UTC)


def place_of(name: str, given: GivenPlace, *, clock: Clock = _now) -> int | AtTime | None:
    """Parse the position given as the argument ``name``; raise ConfigError if it is invalid. A time without a zone is
    UTC."""
    match given:
        case None | AtTime():
            return given
        case bool():
            pass
        case int():
            return _offset(name, int(given))
        case str():
            return parse_place(name, given, clock=clock)
        case datetime():
            if given.tzinfo is None:
                raise ConfigError(f"{name} is {given.isoformat()}, which has no time zone: add tzinfo=UTC")
            return AtTime.of(given)
        case date():
            return AtTime.of(datetime.combine(given, time(), UTC))
    kinds = "an offset, an aware datetime, a date or a text"
    raise ConfigError(f"{name} is of the type {type(given).__name__}; give {kinds}")


def time_of(name: str, given: GivenPlace, *, clock: Clock = _now) -> AtTime | None:
    """Parse the time given as the argument ``name``, in the forms of :func:`place_of`; raise ConfigError for an
    offset."""
    place = place_of(name, given, clock=clock)
    if isinstance(place, int):
        raise ConfigError(f"{name} is {place}, an offset: give a time, as yesterday, 2026-01-31 or @1769846400000")
    return place


def has_own_zone(text: str) -> bool:
    """Return True if a text means the same offset or time in every zone and at every moment, unlike relative times and
    times without a zone.
    """
    word = text.strip()
    if _OFFSET.fullmatch(word) or _MILLISECONDS.fullmatch(word):
        return True
    try:
        return datetime.fromisoformat(word).tzinfo is not None
    except ValueError:
        return False


def ends_before(start: int | AtTime | None, stop: int | AtTime | None) -> bool:
    """Return True if ``stop`` is before ``start``. Return False for an offset and a time, which cannot be compared."""
    if isinstance(start, AtTime) and isinstance(stop, AtTime):
        return start.timestamp_ms > stop.timestamp_ms
    return isinstance(start, int) and isinstance(stop, int) and start > stop


def window_of(start: GivenPlace, stop: GivenPlace) -> tuple[int | AtTime | None, int | AtTime | None]:
    """Parse the start and the stop of a window. Raise ConfigError if one is invalid, or if they are in the wrong
    order.
    """
    first, last = place_of("start", start), place_of("stop", stop)
    if ends_before(first, last):
        raise ConfigError(f"start {start} is after stop {stop}")
    return first, last


def duration_of(name: str, given: timedelta | str) -> timedelta:
    """Parse a duration such as ``90s``, ``30m``, ``24h``, ``7d``; raise ConfigError for an invalid duration."""
    match given:
        case timedelta():
            return given
        case str() if match := _DURATION.fullmatch(given.strip()):
            return timedelta(**{_UNITS[match[2]]: int(match[1])})
        case str():
            raise ConfigError(f"{name} is {quote(given)}: give a duration, as 90s, 30m, 24h or 7d")
        case _:
            raise ConfigError(f"{name} is of the type {type(given).__name__}; give a timedelta, or a text as 24h")


def duration_text(given: timedelta) -> str:
    """Return a duration as text for :func:`duration_of`, in the largest unit that divides it: ``1d``. Drop fractions of
    a second."""
    units = {letter: timedelta(**{unit: 1}) for letter, unit in reversed(_UNITS.items())}
    letter = next((letter for letter, unit in units.items() if not given % unit), "s")
    return f"{given // units[letter]}{letter}"


def parse_place(name: str, text: str, *, clock: Clock = _now) -> int | AtTime:
    """Parse the position in ``text``. If it is invalid, raise ConfigError with the argument's ``name``."""
    word = text.strip()
    if _OFFSET.fullmatch(word):
        return _offset(name, int(word))
    if _NEGATIVE.fullmatch(word):
        raise ConfigError(_no_negative(name, word))
    moment = _moment(word, clock)
    if moment is None:
        raise ConfigError(f"{name} is {excerpt(text)!r}, not an offset or a time: write {_EXAMPLES}")
    return AtTime.of(moment)


def _offset(name: str, offset: int) -> int:
    if offset < 0:
        raise ConfigError(_no_negative(name, offset))
    if offset > MAX_OFFSET:
        raise ConfigError(f"{name}={offset} is not an offset: offsets are from 0 to {MAX_OFFSET}")
    check_offset(offset)
    return offset


def _no_negative(name: str, number: object) -> str:
    count = str(number).lstrip("-")
    if name.startswith("-"):
        return f"{name} {number} is not an offset; for the last records, use cat --last {count}"
    return f"{name}={number} is not an offset; use last={count} for the last records"


def _moment(word: str, clock: Clock) -> datetime | None:
    try:
        if match := _MILLISECONDS.fullmatch(word):
            return EPOCH + timedelta(milliseconds=int(match[1]))
        if match := _AGO.fullmatch(word):
            return clock() - timedelta(**{_UNITS[match[2]]: int(match[1])})
        if word == "now":
            return clock()
        today = datetime.combine(clock().astimezone(UTC).date(), time(), UTC)
        if word in {"today", "yesterday"}:
            return today - timedelta(days=word == "yesterday")
        if _OF_TODAY.fullmatch(word):
            return datetime.combine(today.date(), time.fromisoformat(word.zfill(len(word) + (word[1] == ":"))), UTC)
        moment = datetime.fromisoformat(word)
    except (ValueError, OverflowError):
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
