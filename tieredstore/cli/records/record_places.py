"""Where a person says that records begin and end: offsets, times, so many from the end; and of which partitions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from tieredstore.errors import ConfigError, excerpt
from tieredstore.limits import MAX_INT32, MAX_OFFSET
from tieredstore.model import AtTime, Last, Place, check_offset

_OFFSET: Final = re.compile(r"\d{1,19}", re.ASCII)
_LAST: Final = re.compile(r"-(\d{1,19})", re.ASCII)
_MILLISECONDS: Final = re.compile(r"@(\d{1,18})", re.ASCII)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_RANGE: Final = re.compile(r"(\d{1,10})(?:-(\d{1,10}))?", re.ASCII)
_MOST_PARTITIONS: Final = 100_000


def parse_place(text: str) -> int | AtTime | Last:
    """A place that a person names; ConfigError for what is none."""
    if match := _LAST.fullmatch(text):
        return Last(int(match[1]))
    return parse_offset_or_time(text, "; -5 stands for the last five")


def parse_offset_or_time(text: str, more: str = "") -> int | AtTime:
    """An offset, or the time that a place was given as; ConfigError, with ``more`` words, for what is neither."""
    if _OFFSET.fullmatch(text):
        return _offset(text)
    try:
        if match := _MILLISECONDS.fullmatch(text):
            return AtTime.of(_EPOCH + timedelta(milliseconds=int(match[1])))
        moment = datetime.fromisoformat(text)
        return AtTime.of(moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC))
    except (ValueError, OverflowError):
        raise ConfigError(
            f"{excerpt(text)!r} is neither an offset nor a time: 1234, 2026-01-31, 2026-01-31T08:00:00Z and "
            f"@1769846400000 are{more}"
        ) from None


def check_window(start: Place | None, stop: Place | None) -> None:
    """ConfigError for a window that no log has."""
    if isinstance(stop, Last):
        raise ConfigError(f"--to is an offset or a time, and -{stop.count} is none: --from has the last records")
    if isinstance(start, int) and isinstance(stop, int) and start > stop:
        raise ConfigError(f"there are no offsets from {start} up to {stop}: the window ends before it begins")


def choose_partitions(argument: str | None, options: Sequence[str] | None) -> tuple[int, ...] | None:
    """The partitions behind a topic and those of --partition together; None for all."""
    return parse_partitions([*([] if argument is None else [argument]), *(options or ())])


def parse_partitions(texts: Sequence[str] | None) -> tuple[int, ...] | None:
    """Partitions as ``3``, ``0,2`` and ``4-7`` name them, ascending, each once; None where nothing was said."""
    if not texts:
        return None
    ranges = [each for text in texts for each in _ranges(text)]
    if sum(map(len, ranges)) > _MOST_PARTITIONS:
        raise ConfigError(f"--partition names more than {_MOST_PARTITIONS} partitions: leave it out for all of a topic")
    return tuple(sorted({number for each in ranges for number in each}))


def _ranges(text: str) -> Iterator[range]:
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip(" "))
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last <= MAX_INT32:
            raise ConfigError(f"--partition is {excerpt(text)!r}: it must be as 3, as 0,2 or as 4-7")
        yield range(first, last + 1)


def _offset(text: str) -> int:
    offset = int(text)
    if offset > MAX_OFFSET:
        raise ConfigError(f"{offset} is not an offset: those are from 0 to {MAX_OFFSET}")
    check_offset(offset)
    return offset
