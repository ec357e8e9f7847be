"""Declarations of query options, and parsers of their texts.

The JSON formats, and the precedence of options, are the same as in Spark's Kafka source.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Literal, TypeAlias, TypeVar, cast

from tieredstore.errors import ConfigError
from tieredstore.limits import MAX_INT32, MAX_INT64
from tieredstore.model import AtTime, Earliest, Latest, Place, Places, TopicPartition, Uuid, can_be_topic

_MAX_SHOWN: Final = 80
# Allow no more digits than Java's long has, because int() would be slow, or fail, for very long texts.
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

_Value = TypeVar("_Value")
_Value_co = TypeVar("_Value_co", covariant=True)
_Word = TypeVar("_Word", bound=str)

Parse: TypeAlias = Callable[[str, str], _Value]
"""Parses an option, given its name and trimmed text. For an invalid text, raises a ConfigError that contains name and
text."""


@dataclass(frozen=True)  # with slots, Python 3.11 cannot instantiate Option[...]
class Option(Generic[_Value_co]):
    """An option of a Spark data source. The tables of options in the docs are generated from these objects."""

    name: str
    parse: Parse[_Value_co]
    default: _Value_co
    """The value if the option is absent."""
    doc: str
    shown: str = ""
    """The option's default, as the tables in the docs show it."""
    query: Literal["both", "batch", "stream"] = "both"
    """The kind of query that may have the option."""
    kafka: str = ""
    """How the option differs from the option of the same name in Spark's Kafka source."""


class OptionTexts:
    """The options of one query. As in Spark, names match in any case, but errors spell them as declared."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._texts = {name.lower(): text.strip() for name, text in options.items()}

    def __contains__(self, option: Option[object]) -> bool:
        return option.name.lower() in self._texts

    def get(self, option: Option[_Value]) -> _Value:
        """Return the value of an option. Raise ConfigError for an invalid text."""
        text = self._texts.get(option.name.lower())
        return option.default if text is None else option.parse(option.name, text)

    def names_given(self, options: Sequence[Option[object]]) -> list[str]:
        """Return the declared names of those ``options`` that the query has."""
        return [option.name for option in options if option in self]


def boolean(name: str, text: str) -> bool:
    """Parse ``true`` or ``false`` in any case."""
    if text.lower() not in ("true", "false"):
        raise wrong(name, text, "true or false")
    return text.lower() == "true"


def choice(*allowed: _Word) -> Parse[_Word]:
    """Return a parser that accepts the ``allowed`` words in upper or lower case."""

    def parse(name: str, text: str) -> _Word:
        for word in allowed:
            if word == text.lower():
                return word
        raise wrong(name, text, " or ".join(allowed))

    return parse


def whole(low: int, high: int = MAX_INT64) -> Parse[int]:
    """Return a parser of whole numbers from ``low`` to ``high`` (inclusive)."""
    expected = f"a whole number of {low} or more" + (f", up to {high}" if high < MAX_INT64 else "")

    def parse(name: str, text: str) -> int:
        if not _WHOLE.fullmatch(text) or not low <= int(text) <= high:
            raise wrong(name, text, expected)
        return int(text)

    return parse


def size(name: str, text: str) -> int:
    """Parse a number of bytes, at least one, in Spark's notation: ``67108864``, ``64m``, ``1gb``."""
    measured = _measure(text, _BYTES)
    if not 1 <= measured <= MAX_INT64:
        raise wrong(name, text, "a size of one byte or more such as 67108864, 64m or 1g")
    return measured


def interval_ms(name: str, text: str) -> int:
    """Parse a time in Spark's notation (``500ms``, ``10s``, ``15m``) to milliseconds. A number without a unit
    is in milliseconds.
    """
    measured = _measure(text, _MICROSECONDS)
    if not 0 <= measured // 1000 <= MAX_INT64:
        raise wrong(name, text, "a time such as 500ms, 30s, 15m, 1h or 1d")
    return measured // 1000


def _measure(text: str, units: Mapping[str, int]) -> int:
    """Return the amount in the smallest unit, or -1 if the text is invalid."""
    measure = _MEASURE.fullmatch(text.lower())
    return int(measure[1]) * units[measure[2]] if measure and measure[2] in units else -1


def settings_name(name: str, text: str) -> str:
    """Parse the name of a settings file."""
    if not text:
        raise wrong(name, text, "the name of a settings file")
    return text


def topics(name: str, text: str) -> tuple[str, ...]:
    """Parse topic names separated by commas. Repeated names count once."""
    names = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    if not names:
        raise wrong(name, text, "one topic at least, or several separated by commas")
    for topic in names:
        _check_topic(name, topic)
    return names


def partitions(name: str, text: str) -> tuple[TopicPartition, ...]:
    """Parse partitions such as ``{"topicA":[0,1]}``. Return them sorted and without repetitions."""
    example = '{"topicA":[0,1],"topicB":[0]}'
    named: set[TopicPartition] = set()
    for topic, numbers in _of_topics(name, text, f"JSON such as {example}").items():
        if not isinstance(numbers, list):
            raise wrong(name, text, f"lists of partitions such as {example}")
        listed = cast("list[object]", numbers)
        named |= {(topic, _whole_of(name, f"a partition of {topic}", number, 0, MAX_INT32)) for number in listed}
    if not named:
        raise wrong(name, text, f"one partition at least, such as {example}")
    return tuple(sorted(named))


def topic_ids(name: str, text: str) -> Mapping[str, Uuid]:
    """Parse topic ids such as ``{"topicA":"AAAAAAAAQACAAAAAAAAAAA"}``."""
    expected = 'JSON such as {"topicA":"AAAAAAAAQACAAAAAAAAAAA"}'
    ids: dict[str, Uuid] = {}
    for topic, value in _of_topics(name, text, expected).items():
        if not isinstance(value, str):
            raise wrong(name, text, expected)
        try:
            ids[topic] = Uuid.parse(value)
        except ConfigError as error:
            raise ConfigError(f"the option {name}: {error}") from None
    return ids


def columns_among(every: Sequence[str]) -> Parse[frozenset[str]]:
    """Return a parser of column names. It accepts the names in ``every``, in upper or lower case."""
    known = {name.lower(): name for name in every}

    def parse(name: str, text: str) -> frozenset[str]:
        words = [word.strip().lower() for word in text.split(",")]
        if not set(words) <= set(known) or len(set(words)) < len(words):
            raise wrong(name, text, f"some of {', '.join(every)}, each once and separated by commas")
        return frozenset(known[word] for word in words)

    return parse


def wrong(name: str, text: str, expected: str) -> ConfigError:
    """Return the error for an option with an invalid text."""
    return ConfigError(f"the option {name} is {_cut(text)}; expected {expected}")


def _cut(text: str) -> str:
    return repr(text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…")


def _check_topic(name: str, topic: str) -> None:
    if not can_be_topic(topic):
        raise ConfigError(
            f"the option {name} has {topic[:_MAX_SHOWN]!r}, which is not a topic name: use up to 249 letters, digits "
            "and . _ -"
        )


def _of_topics(name: str, text: str, expected: str) -> dict[str, object]:
    """Parse a JSON object with a value for each topic."""
    try:
        value = json.loads(text, object_pairs_hook=_without_doubles)
    except (ValueError, RecursionError):
        # json.loads raises RecursionError for brackets nested some thousand deep.
        value = None
    if not isinstance(value, dict):
        raise wrong(name, text, f"{expected}, each name once")
    values = cast("dict[str, object]", value)
    for topic in values:
        _check_topic(name, topic)
    return values


def _of_partitions(name: str, text: str, low: int, example: str) -> dict[TopicPartition, int]:
    """Parse a number of at least ``low`` for each partition, such as ``{"topicA":{"0":23}}``."""
    chosen: dict[TopicPartition, int] = {}
    expected = f"JSON such as {example}"
    for topic, numbers in _of_topics(name, text, expected).items():
        if not isinstance(numbers, dict):
            raise wrong(name, text, expected)
        for partition, number in cast("dict[str, object]", numbers).items():
            where = topic, _whole_of(name, f"a partition of {topic}", partition, 0, MAX_INT32)
            if where in chosen:
                raise ConfigError(f"{name} names {topic}-{where[1]} twice")
            chosen[where] = _whole_of(name, f"{topic}-{where[1]}", number, low, MAX_INT64)
    if not chosen:
        raise wrong(name, text, f"one partition at least, such as {example}")
    return chosen


def _whole_of(name: str, what: str, number: object, low: int, high: int) -> int:
    """Return a JSON number as int. Like Spark, this also accepts a number in quotes."""
    if isinstance(number, str) and _WHOLE.fullmatch(number):
        number = int(number)
    # True is an int in Python, but not a number in JSON, so refuse it.
    if isinstance(number, bool) or not isinstance(number, int) or not low <= number <= high:
        shown = str(number)[:_MAX_SHOWN]
        raise ConfigError(f"the option {name} has {shown!r} for {what}; expected a whole number of {low} or more")
    return number


def _without_doubles(pairs: list[tuple[str, object]]) -> dict[str, object]:
    # Refuse equal names, because two offsets for one partition are a mistake, and Python's JSON parser would silently
    # use the last one.
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError
    return fields


_EARLIEST: Final = -2
_ENDS: Final[Mapping[int, Place]] = {_EARLIEST: Earliest(), -1: Latest()}
"""Special offsets in an option: -2 stands for the earliest offset, -1 for the latest."""

_OFFSETS_EXAMPLE: Final = '{"topicA":{"0":23,"1":-2}}'
_TIMES_EXAMPLE: Final = '{"topicA":{"0":1735689600000,"1":1735689600000}}'


def at_time(name: str, text: str) -> Places:
    """Parse one time for all partitions, in milliseconds."""
    return AtTime(whole(0)(name, text))


def at_times(name: str, text: str) -> Places:
    """Parse a time for each partition."""
    return {where: AtTime(time) for where, time in _of_partitions(name, text, 0, _TIMES_EXAMPLE).items()}


def at_offsets(name: str, text: str) -> Places:
    """Parse ``earliest``, ``latest``, or an offset for each partition."""
    if text.lower() in ("earliest", "latest"):
        return Earliest() if text.lower() == "earliest" else Latest()
    if not text.startswith("{"):
        raise wrong(name, text, f"earliest, latest or JSON such as {_OFFSETS_EXAMPLE}")
    offsets = _of_partitions(name, text, _EARLIEST, _OFFSETS_EXAMPLE)
    return {where: _ENDS.get(offset, offset) for where, offset in offsets.items()}


Sides: TypeAlias = Sequence[Option[Places | None]]
"""Options for the start or end of a read. As in Spark's Kafka source, the first option that is present counts, and the
other options are ignored.
"""


def starting_places(texts: OptionTexts, options: Sides, *, streaming: bool) -> Places:
    """Return the start of a read. Raise ConfigError for a batch query that would start at the end."""
    places = _places(texts, options, Latest() if streaming else Earliest())
    if streaming:
        return places
    if isinstance(places, Latest):
        raise ConfigError("the option startingOffsets is latest, where a batch query has nothing to read: leave it out")
    _refuse_place(places, Latest(), "startingOffsets has -1, the latest offset,", "nothing to read there")
    return places


def ending_places(texts: OptionTexts, options: Sides) -> Places:
    """Return the end of a batch query. Raise ConfigError if the query would end at the log's beginning."""
    places = _places(texts, options, Latest())
    if isinstance(places, Earliest):
        raise ConfigError("the option endingOffsets is earliest, so there is nothing to read: leave the option out")
    _refuse_place(places, Earliest(), "endingOffsets has -2, the earliest offset,", "nothing to read before it")
    return places


def _places(texts: OptionTexts, options: Sides, default: Places) -> Places:
    given = next((texts.get(option) for option in options if option in texts), None)
    return default if given is None else given


def check_pair(starting: Places, ending: Places) -> None:
    """Raise ConfigError if start and end name different partitions, or if the start is after the end."""
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
        # Skip the check for `earliest` and `latest`, because they become offsets only when the log is read.
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


def _refuse_place(places: Places, refused: Place, what: str, why: str) -> None:
    for where, place in places.items() if isinstance(places, Mapping) else ():
        if place == refused:
            raise ConfigError(f"the option {what} for {where[0]}-{where[1]}: a batch query has {why}")


_CLASSES: Final = {
    "Lower": "a-z", "Ll": "a-z", "IsLowercase": "a-z", "Upper": "A-Z", "Lu": "A-Z", "IsUppercase": "A-Z",
    "Alpha": "a-zA-Z", "L": "a-zA-Z", "IsAlphabetic": "a-zA-Z", "IsLetter": "a-zA-Z",
    "Digit": "0-9", "N": "0-9", "Nd": "0-9", "IsDigit": "0-9", "Alnum": "a-zA-Z0-9", "Punct": "._\\-", "P": "._\\-",
}  # fmt: skip
_SPELLINGS: Final = re.compile(
    r"\\Q(?P<quoted>.*?)(?:\\E|\Z)"
    r"|\\p(?:\{(?P<property>\w+)\}|(?P<short>[LNP]))"
    r"|(?P<group>\(\?<(?=[a-zA-Z]))"
    r"|\\k<(?P<back>\w+)>"
    r"|(?P<end>\\[zZ])"
    r"|(?P<octal>\\(?:0|[1-9][0-9]{2}))"
    r"|(?P<escaped>\\.)"
    r"|(?P<inside>&&)",
    re.DOTALL,
)


def java_pattern(name: str, pattern: str) -> str:
    """Translate a Java regular expression to Python's ``re``, so that it matches the same topic names.

    Raises ConfigError for an empty or invalid pattern.
    """
    if not pattern:
        raise ConfigError(f"the option {name} is empty; it must match whole topic names, such as topic-.*")
    translated = _SPELLINGS.sub(_translate, pattern)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)  # re warns of nested sets, which only Java supports
            re.compile(translated)
    except (re.error, FutureWarning, OverflowError, RecursionError) as error:
        reason = "it has nested sets" if isinstance(error, FutureWarning) else str(error)
        raise _unreadable(pattern, reason) from None
    return translated


def _translate(spelling: re.Match[str]) -> str:
    kind = spelling.lastgroup
    if kind == "quoted":
        return re.escape(spelling["quoted"])
    if kind in ("property", "short"):
        return _class(spelling)
    if kind == "octal":
        raise _unreadable(
            spelling.string, f"{spelling[0]} is a character in Java but a group in Python, or the reverse"
        )
    if kind == "inside":
        raise _unreadable(spelling.string, "it has a Java set with &&")
    return {"group": "(?P<", "back": f"(?P={spelling['back']})", "end": r"\Z"}.get(kind or "", spelling[0])


def _class(spelling: re.Match[str]) -> str:
    name = spelling["property"] or spelling["short"]
    if name not in _CLASSES:
        raise _unreadable(spelling.string, f"\\p{{{name}}} is not supported")
    opened = spelling.string[: spelling.start()]
    is_in_set = opened.count("[") - opened.count("\\[") > opened.count("]") - opened.count("\\]")
    return _CLASSES[name] if is_in_set else f"[{_CLASSES[name]}]"


def _unreadable(pattern: str, reason: str) -> ConfigError:
    return ConfigError(f"the option subscribePattern is {_cut(pattern)}, which cannot be read: {reason}")
