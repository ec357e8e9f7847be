"""Directories below a topic, by offset, time or field, with names that Hive reads as partitions."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from urllib.parse import unquote
from zoneinfo import ZoneInfo

from tieredstore.errors import ConfigError
from tieredstore.model import EPOCH

MINUTE_MS: Final = 60_000
FIRST_MS: Final = -12_212_553_600_000
"""The beginning of 1583 in UTC. Pipelines refuse earlier dates, because before October 1582, Java's calendar is Julian
but Python's is not.
"""
YEAR_10000_MS: Final = 253_402_300_800_000
WHOLE_MINUTES_MS: Final = 65_750_400_000
"""The beginning of February 1972. Since then all time zones differ from UTC by whole minutes; Monrovia was the last
exception.
"""
_ESCAPED: Final = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{}\[\]^\ufffe\uffff\ud800-\udfff]")
_LONGEST: Final = 200
_NO_PATH: Final = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff]")
_PATTERN: Final = re.compile(r"y+|M+|d+|H+|m+|s+|'[^']*'|[A-Za-z]+|[^A-Za-z']+")
_UNITS: Final = ("year", "month", "day", "hour", "minute")
_UNIT_OF: Final = {"Y": "year", "y": "year", "m": "month", "d": "day", "H": "hour", "M": "minute"}
_CODES: Final = {"yyyy": "%Y", "yy": "%y", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "ss": "%S"}


@dataclass(frozen=True, slots=True)
class TimeDirectories:
    """Names of directories for days, hours and minutes in a time zone. Frozen and picklable."""

    zone: str = "UTC"
    hours: bool = False
    minutes: bool = False
    prefixes: tuple[str, str, str] = ("dt=", "hr=", "min=")
    formats: tuple[str, str, str] = ("%Y-%m-%d", "%H", "%M")

    @property
    def last_ms(self) -> int:
        """The end of the year 9999, in UTC or in the pipeline's time zone, whichever is earlier. Later times have no
        directory."""
        return _last_ms(self.zone)

    def second_of(self, timestamp_ms: int) -> int | None:
        """Return a time in seconds that has the same directory as the timestamp. From 1972 on, the result is the same
        for all timestamps of a minute.

        Return None for a timestamp before 1583 or from ``last_ms`` on, which has no directory.
        """
        if not FIRST_MS <= timestamp_ms < self.last_ms:
            return None
        return timestamp_ms // 1000 if timestamp_ms < WHOLE_MINUTES_MS else timestamp_ms // MINUTE_MS * 60

    def of_second(self, second: int) -> str:
        """Return the path of a directory. ``second`` counts from the epoch."""
        moment = (EPOCH + timedelta(seconds=second)).astimezone(ZoneInfo(self.zone))
        return "/".join(escape(moment.strftime(how), prefix) for prefix, how in self._parts())

    def _parts(self) -> list[tuple[str, str]]:
        """Return the prefix and the format of each directory level. As in Secor, a format with slashes makes several
        levels."""
        depth = 3 if self.minutes else 2 if self.hours else 1
        return [
            ("" if level else prefix, how)
            for prefix, formats in list(zip(self.prefixes, self.formats, strict=True))[:depth]
            for level, how in enumerate(formats.split("/"))
        ]

    def end_ms(self, path: str) -> int | None:
        """Return the end of a directory's period in ms since the epoch. Return None if this object makes no directories
        with such a path.

        If an hour occurs twice because clocks go back, the result is the end of its second occurrence.
        """
        parts, names = self._parts(), path.split("/")
        if len(names) != len(parts):
            return None
        times: dict[str, int] = {}
        for name, (prefix, how) in zip(names, parts, strict=True):
            try:
                moment = datetime.strptime(unquote(name.removeprefix(prefix)), how)  # noqa: DTZ007  zone is set below
            except (ValueError, re.error):
                return None
            units = (_UNIT_OF.get(code) for code in re.findall("%(.)", how))
            times |= {unit: getattr(moment, unit) for unit in units if unit is not None}
        # A period needs each unit from the year down to its smallest unit. For example, a period with a minute also
        # needs an hour.
        if not times or times.keys() != {*_UNITS[: len(times)]}:
            return None
        try:
            return _end_ms([times[unit] for unit in _UNITS[: len(times)]], ZoneInfo(self.zone))
        except (ValueError, OverflowError):
            return None


@functools.cache
def _last_ms(zone: str) -> int:
    """Return ``TimeDirectories.last_ms``. The result is cached, because each message is compared with it."""
    ahead = ZoneInfo(zone).utcoffset(datetime(9999, 12, 30)) or timedelta()  # noqa: DTZ001  local time in the zone
    return YEAR_10000_MS - max(0, ahead // timedelta(milliseconds=1))


def _end_ms(times: Sequence[int], zone: ZoneInfo) -> int:
    """Return the end of a period. ``times`` has the year, then optionally month, day, hour and minute."""
    # An hour ends with its last minute, because it has 90 minutes if clocks go back by half an hour.
    year, month, day, hour, minute = [*times, *(1, 1, 0, 59)[len(times) - 1 :]]
    length_ms = 0
    match len(times):
        case 1:
            start = datetime(year + 1, 1, 1, tzinfo=zone)
        case 2:
            start = datetime(year + month // 12, month % 12 + 1, 1, tzinfo=zone)
        case 3:
            start = datetime(year, month, day, tzinfo=zone) + timedelta(days=1)
        case _:
            start, length_ms = datetime(year, month, day, hour, minute, tzinfo=zone), MINUTE_MS
    # When clocks change, a local time occurs twice or never. In both cases take the later instant.
    return length_ms + int(max(start.replace(fold=fold).timestamp() for fold in (0, 1)) * 1000)


def escape(part: str, prefix: str = "") -> str:
    """Return ``prefix`` and text as the name of one directory. Special characters become ``%XX``, as in Hive.

    ``part`` may come from a message, so its slashes are escaped too, and the result is never ``.`` or ``..``. The
    result does not begin with ``.`` or ``_``, because Hadoop, Spark and Hive skip such directories. Raises ValueError
    for an empty or too long text.
    """
    if not part:
        raise ValueError("it is empty")
    if part.strip(".") == "":
        return prefix + part.replace(".", "%2E")
    whole = _ESCAPED.sub(_hexadecimal, part)
    if len(whole.encode("utf-8", "replace")) > _LONGEST:
        raise ValueError(f"the directory's name would have more than {_LONGEST} bytes")
    if not prefix and whole[0] in "._":
        whole = f"%{ord(whole[0]):02X}{whole[1:]}"
    return prefix + whole


def is_path(directory: str) -> bool:
    """Return True if ``directory`` is a valid relative path. Only a user's own parser can return an invalid path.

    In a valid path, no part is empty, ``.`` or ``..``, and no part contains backslashes or control characters.
    """
    return all(part.strip(".") and not _NO_PATH.search(part) for part in directory.split("/"))


def _hexadecimal(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "surrogatepass"))


def java_format(pattern: str, name: str) -> str:
    """Convert a pattern of Java's ``SimpleDateFormat`` to ``strftime``; raise ConfigError for unsupported letters."""
    pieces: list[str] = []
    for piece in _PATTERN.findall(pattern):
        if piece in _CODES:
            pieces.append(_CODES[piece])
        elif piece.startswith("'"):
            pieces.append((piece[1:-1] or "'").replace("%", "%%"))
        elif piece[0].isalpha():
            raise ConfigError(f"{name} has {piece!r}: use only {', '.join(_CODES)}")
        else:
            pieces.append(piece.replace("%", "%%"))
    return "".join(pieces)


def date_expression(pattern: str, name: str, *, is_strict: bool = False) -> str:
    """Return a regular expression for the texts that a ``SimpleDateFormat`` pattern parses, with a group per field.

    As in Java, blanks may precede a number. A number takes all digits, unless the next field is a number too. Text
    after the date is ignored unless ``is_strict``. Each group is named by the letters of its field. Raises ConfigError
    for unsupported or repeated letters.
    """
    java_format(pattern, name)
    pieces = _PATTERN.findall(pattern)
    expressions: list[str] = []
    for piece, following in zip(pieces, [*pieces[1:], ""], strict=False):
        if piece in _CODES:
            digits = rf"[ \t0-9]{{{len(piece)}}}" if following in _CODES else r"[ \t]*[0-9]{1,9}"
            expressions.append(f"(?P<{piece}>{digits})")
        else:
            expressions.append(re.escape((piece[1:-1] or "'") if piece.startswith("'") else piece))
    expression = "".join(expressions)
    try:
        re.compile(expression)
    except re.error:
        raise ConfigError(f"{name} has the same part of a date twice: use each part once") from None
    return expression + (r"\Z" if is_strict else "")
