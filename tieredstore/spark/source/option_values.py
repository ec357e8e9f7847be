"""The texts of options as values: numbers, sizes, times, lists, and where reading starts and ends.

In the JSON, and in the precedence, of Spark's Kafka source.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Final, NoReturn, cast

from tieredstore.errors import ConfigError
from tieredstore.limits import MAX_INT32, MAX_INT64
from tieredstore.model import AtTime, Earliest, Latest, Place, Places, TopicPartition
from tieredstore.spark.source.rows import KAFKA_ROWS

_MAX_SHOWN: Final = 80
_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}", re.ASCII)
# No more digits than Java's long has, so that int() is not given a text of any length.
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_MEASURE: Final = re.compile(r"([0-9]{1,19})\s*([a-z]*)", re.ASCII)

_BYTES: Final = {
    unit: 1024**power
    for power, units in enumerate((("", "b"), ("k", "kb"), ("m", "mb"), ("g", "gb"), ("t", "tb"), ("p", "pb")))
    for unit in units
}
_MICROSECONDS: Final = {
    "us": 1, "": 1000, "ms": 1000, "s": 10**6, "m": 60 * 10**6, "min": 60 * 10**6, "h": 3600 * 10**6, "d": 86400 * 10**6
}  # fmt: skip


class OptionTexts:
    """The options of one query, found by name without regard to case, as Spark's are; errors name them as written.

    Every method gives ``None`` for an option that was left out, and raises ConfigError for a text that it cannot be.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._texts = {name.lower(): text for name, text in options.items()}

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._texts

    def text(self, name: str) -> str | None:
        """The text, trimmed."""
        text = self._texts.get(name.lower())
        return None if text is None else text.strip()

    def boolean(self, name: str) -> bool | None:
        """``true`` or ``false`` in any case."""
        text = self.text(name)
        if text is None:
            return None
        if text.lower() not in ("true", "false"):
            raise wrong(name, text, "true or false")
        return text.lower() == "true"

    def choice(self, name: str, *allowed: str) -> str | None:
        """One of a few lower-case words, written in any case."""
        text = self.text(name)
        if text is None:
            return None
        if text.lower() not in allowed:
            raise wrong(name, text, " or ".join(allowed))
        return text.lower()

    def whole(self, name: str, low: int, high: int = MAX_INT64) -> int | None:
        """A whole number in ``low..high`` (both in)."""
        text = self.text(name)
        if text is None:
            return None
        if not _WHOLE.fullmatch(text) or not low <= int(text) <= high:
            raise wrong(
                name, text, f"a whole number of {low} or more" + (f", up to {high}" if high < MAX_INT64 else "")
            )
        return int(text)

    def size(self, name: str) -> int | None:
        """Bytes, at least one, as Spark writes sizes: ``67108864``, ``64m``, ``1gb``."""
        return self._measure(name, _BYTES, 1, 1, "a size of one byte or more such as 67108864, 64m or 1g")

    def interval_ms(self, name: str) -> int | None:
        """Milliseconds of a time as Spark writes it: ``500ms``, ``10s``, ``15m``; without a unit it is milliseconds."""
        return self._measure(name, _MICROSECONDS, 1000, 0, "a time such as 500ms, 30s, 15m, 1h or 1d")

    def _measure(self, name: str, units: Mapping[str, int], unit: int, low: int, expected: str) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        measure = _MEASURE.fullmatch(text.lower())
        factor = units.get(measure[2]) if measure else None
        measured = -1 if measure is None or factor is None else int(measure[1]) * factor // unit
        if not low <= measured <= MAX_INT64:
            raise wrong(name, text, expected)
        return measured

    def topics(self, name: str) -> tuple[str, ...] | None:
        """Names of topics, separated by commas; one named twice counts once."""
        text = self.text(name)
        if text is None:
            return None
        names = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
        if not names:
            raise wrong(name, text, "one topic at least, or several separated by commas")
        for topic in names:
            _check_topic(name, topic)
        return names

    def partitions(self, name: str) -> tuple[TopicPartition, ...] | None:
        """Partitions as ``{"topicA":[0,1]}``, in ascending order; one named twice counts once."""
        expected = '{"topicA":[0,1],"topicB":[0]}'
        topics = self._json(name, expected)
        if topics is None:
            return None
        partitions: set[TopicPartition] = set()
        for topic, numbers in topics.items():
            _check_topic(name, topic)
            if not isinstance(numbers, list):
                self._refuse(name, f"lists of partitions such as {expected}")
            listed = cast("list[object]", numbers)
            partitions |= {
                (topic, _whole_of(name, f"a partition of {topic}", number, 0, MAX_INT32)) for number in listed
            }
        if not partitions:
            self._refuse(name, f"one partition at least, such as {expected}")
        return tuple(sorted(partitions))

    def of_partitions(self, name: str, low: int, example: str) -> dict[TopicPartition, int] | None:
        """A number of ``low`` or more for each partition, as ``{"topicA":{"0":23}}``."""
        topics = self._json(name, example)
        if topics is None:
            return None
        chosen: dict[TopicPartition, int] = {}
        for topic, numbers in topics.items():
            _check_topic(name, topic)
            if not isinstance(numbers, dict):
                self._refuse(name, f"JSON such as {example}")
            for partition, number in cast("dict[str, object]", numbers).items():
                where = topic, _whole_of(name, f"a partition of {topic}", partition, 0, MAX_INT32)
                if where in chosen:
                    raise ConfigError(f"{name} names {topic}-{where[1]} twice")
                chosen[where] = _whole_of(name, f"{topic}-{where[1]}", number, low, MAX_INT64)
        if not chosen:
            self._refuse(name, f"one partition at least, such as {example}")
        return chosen

    def texts_of_topics(self, name: str, example: str) -> dict[str, str] | None:
        """A text for each topic, as ``{"topicA":"text"}``."""
        topics = self._json(name, example)
        if topics is None:
            return None
        texts: dict[str, str] = {}
        for topic, text in topics.items():
            _check_topic(name, topic)
            if not isinstance(text, str):
                self._refuse(name, f"JSON such as {example}")
            texts[topic] = text
        return texts

    def _json(self, name: str, example: str) -> dict[str, object] | None:
        text = self.text(name)
        if text is None:
            return None
        try:
            value = json.loads(text, object_pairs_hook=_without_doubles)
        except (ValueError, RecursionError):
            # The latter by brackets in brackets, some thousand deep.
            value = None
        if not isinstance(value, dict):
            self._refuse(name, f"JSON such as {example}, each name once")
        return cast("dict[str, object]", value)

    def _refuse(self, name: str, expected: str) -> NoReturn:
        raise wrong(name, self.text(name) or "", expected)


def columns_of(options: Mapping[str, str], every: Sequence[str] = KAFKA_ROWS.columns) -> tuple[str, ...]:
    """The columns that ``columns`` and ``includeHeaders`` ask for, of ``every`` column and in that order.

    ``includeHeaders`` adds the headers to any ``columns``. ConfigError for unknown columns, and for headers that are
    asked for by the one and refused by the other.
    """
    texts = OptionTexts(options)
    headers, text = texts.boolean("includeHeaders"), texts.text("columns")
    if text is None:
        return tuple(name for name in every if headers or name != "headers")
    known = {name.lower(): name for name in every}
    words = [word.strip().lower() for word in text.split(",")]
    if not set(words) <= set(known) or len(set(words)) < len(words):
        raise wrong("columns", text, f"some of {', '.join(every)}, each once and separated by commas")
    if "headers" in words and headers is False:
        raise ConfigError("columns has headers and includeHeaders is false: leave includeHeaders out, or the column")
    return tuple(name for key, name in known.items() if key in words or (headers and key == "headers"))


def wrong(name: str, text: str, expected: str) -> ConfigError:
    """The error for an option whose text is not what is expected."""
    shown = repr(text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…")
    return ConfigError(f"the option {name} is {shown}; expected is {expected}")


def _check_topic(name: str, topic: str) -> None:
    if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise ConfigError(
            f"the option {name} has {topic[:_MAX_SHOWN]!r}, which is no topic's name: "
            "that is up to 249 letters, digits and . _ -"
        )


def _whole_of(name: str, what: str, number: object, low: int, high: int) -> int:
    """A number of JSON, or a text of one, which Spark takes as well."""
    if isinstance(number, str) and _WHOLE.fullmatch(number):
        number = int(number)
    # True is an int in Python, and no number in JSON.
    if isinstance(number, bool) or not isinstance(number, int) or not low <= number <= high:
        shown = str(number)[:_MAX_SHOWN]
        raise ConfigError(f"the option {name} has {shown!r} for {what}; expected is a whole number of {low} or more")
    return number


def _without_doubles(pairs: list[tuple[str, object]]) -> dict[str, object]:
    # JSON lets a name come twice, and the last one would win: of two offsets for a partition one is a mistake.
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError
    return fields


_EARLIEST: Final = -2
_ENDS: Final[Mapping[int, Place]] = {_EARLIEST: Earliest(), -1: Latest()}
"""What stands for the ends of the log among the offsets of an option."""

_OFFSETS_EXAMPLE: Final = '{"topicA":{"0":23,"1":-2}}'
_TIMES_EXAMPLE: Final = '{"topicA":{"0":1735689600000,"1":1735689600000}}'


def starting_spec(texts: OptionTexts, default: Places, *, streaming: bool) -> Places:
    """Where reading starts; ConfigError for a batch that would start at the end."""
    spec = _spec(texts, "starting", default)
    if streaming:
        return spec
    if isinstance(spec, Latest):
        raise ConfigError("the option startingOffsets is latest, where a batch has nothing to read; leave it out")
    _refuse_place(spec, Latest(), "startingOffsets has -1, the latest offset,", "nothing to read there")
    return spec


def ending_spec(texts: OptionTexts) -> Places:
    """Where a batch ends; ConfigError for one that would end where the log begins."""
    spec = _spec(texts, "ending", Latest())
    if isinstance(spec, Earliest):
        raise ConfigError("the option endingOffsets is earliest, before which there is nothing to read; leave it out")
    _refuse_place(spec, Earliest(), "endingOffsets has -2, the earliest offset,", "nothing to read before it")
    return spec


def check_pair(starting: Places, ending: Places) -> None:
    """ConfigError where both name partitions and these differ, or where one starts after its end."""
    match starting, ending:
        case Mapping(), Mapping() if _are_times(starting) == _are_times(ending):
            suffix = "ByTimestamp" if _are_times(starting) else ""
            _check_numbers(starting, ending, f"startingOffsets{suffix}", f"endingOffsets{suffix}")
        case AtTime(timestamp_ms=since), AtTime(timestamp_ms=until) if since > until:
            raise ConfigError(f"startingTimestamp is {since}, after endingTimestamp, which is {until}")
        case _:
            pass


def _are_times(places: Mapping[TopicPartition, Place]) -> bool:
    return any(isinstance(place, AtTime) for place in places.values())


def _check_numbers(
    first: Mapping[TopicPartition, Place], last: Mapping[TopicPartition, Place], start_name: str, end_name: str
) -> None:
    if different := sorted(first.keys() ^ last.keys()):
        topic, partition = different[0]
        one, other = (start_name, end_name) if different[0] in first else (end_name, start_name)
        raise ConfigError(f"{one} names {topic}-{partition} and {other} does not: both must name the same partitions")
    for (topic, partition), place in first.items():
        start, end = _number(place), _number(last[topic, partition])
        # What earliest and latest stand for only the log tells.
        if start is not None and end is not None and end < start:
            raise ConfigError(
                f"{topic}-{partition} would start at {start} ({start_name}), after its end at {end} ({end_name})"
            )


def _number(place: Place) -> int | None:
    match place:
        case int():
            return place
        case AtTime(timestamp_ms=timestamp_ms):
            return timestamp_ms
        case _:
            return None


def _spec(texts: OptionTexts, side: str, default: Places) -> Places:
    # The first that is given counts, as in Spark's Kafka source; the others are not looked at.
    if (timestamp := texts.whole(f"{side}Timestamp", 0)) is not None:
        return AtTime(timestamp)
    if (timestamps := texts.of_partitions(f"{side}OffsetsByTimestamp", 0, _TIMES_EXAMPLE)) is not None:
        return {where: AtTime(time) for where, time in timestamps.items()}
    name = f"{side}Offsets"
    text = texts.text(name)
    if text is None:
        return default
    if text.lower() in ("earliest", "latest"):
        return Earliest() if text.lower() == "earliest" else Latest()
    if not text.startswith("{"):
        raise wrong(name, text, f"earliest, latest or JSON such as {_OFFSETS_EXAMPLE}")
    offsets = texts.of_partitions(name, _EARLIEST, _OFFSETS_EXAMPLE) or {}
    return {where: _ENDS.get(offset, offset) for where, offset in offsets.items()}


def _refuse_place(places: Places, refused: Place, what: str, why: str) -> None:
    for where, place in places.items() if isinstance(places, Mapping) else ():
        if place == refused:
            raise ConfigError(f"the option {what} for {where[0]}-{where[1]}: a batch has {why}")
