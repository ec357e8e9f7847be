"""The price file: what storage, requests and traffic cost, in TOML or JSON. The user writes it.

No price is built in. A price file has these tables; each number's name contains its unit::

    name, currency, as_of, assumptions     whose prices, and their date
    [store]    the object store            always
    [kafka]    brokers' disks and zones    the cost of the same log there; optional
    [use]      the number of reads         unknown from listings; default 0
    [pubsub]   the use of topics of batches   their throughput, retention, readers

Each table is a frozen dataclass whose fields are declared by :func:`number`. To add a table, add its class, and a field
of ``PriceFile``. A GiB has 2^30 bytes; most clouds call it a GB. A month has 30 days.
"""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar, cast

from tieredstore.config.nearest import did_you_mean
from tieredstore.errors import ConfigError, excerpt

_MOST_BYTES: Final = 1 << 18
_MOST_TEXT: Final = 200
_GREATEST: Final = 1e12
_TEXTS: Final = ("name", "currency", "as_of")

_GroupT = TypeVar("_GroupT")
_Table: TypeAlias = Mapping[str, object]


def number(means: str, *, least: float = 0.0, most: float = _GREATEST, default: float | None = None) -> Any:
    """Declare a field with its meaning, its bounds (inclusive) and its default."""
    about = {"means": means, "least": least, "most": most}
    return field(metadata=about) if default is None else field(metadata=about, default=default)


@dataclass(frozen=True, slots=True)
class StorePrices:
    """``[store]``: the prices of the object store."""

    storage_gib_month: float = number("a GiB that is stored for a month")
    write_1000: float = number("1,000 writing requests: PUT, POST, a part, a block")
    list_1000: float = number("1,000 listings")
    read_1000: float = number("1,000 reading requests: GET, HEAD")
    write_gib: float = number("a GiB that is written, in addition to the requests")
    read_gib: float = number("a GiB that is read: retrieval, and transfer to the reader")


@dataclass(frozen=True, slots=True)
class KafkaPrices:
    """``[kafka]``: prices for keeping the same log on brokers."""

    disk_gib_month: float = number("a GiB of a broker's disk for a month")
    disk_fill: float = number(
        "share of each disk that is used, 0 to 1; unused space costs the same", least=0.01, most=1.0
    )
    replication_factor: float = number("replicas of each partition", least=1, most=100)
    zones: float = number("zones that the brokers are in", least=1, most=100)
    cross_zone_gib: float = number("a GiB from one zone to another, sum of both zones' charges")
    moved_per_month: float = number("how often in a month a replica's bytes are copied to another broker")
    local_days: float = number("days of a log that are on brokers' disks and in the bucket")


@dataclass(frozen=True, slots=True)
class Use:
    """``[use]``: how often stored data are read and listed. The user must give these numbers, because a bucket does not
    record them."""

    direct_reads_per_month: float = number(
        "how often all data are read in a month, from the bucket itself", default=0.0
    )
    broker_reads_per_month: float = number("how often all data are read through brokers in a month", default=0.0)
    listings_per_month: float = number("how often all data are listed in a month", default=0.0)


@dataclass(frozen=True, slots=True)
class PubsubUse:
    """``[pubsub]``: how topics of batches are used. In some fields, 0 means that the number is derived from the topic's
    batches.
    """

    throughput_mib_s: float = number(
        "stored MiB that are published per second; 0: the rate of the last 30 days", default=0.0
    )
    retention_days: float = number("days that batches are kept; 0: the stored size stays constant", default=0.0)
    readers: float = number("how often each record is read, by groups and queries", default=1.0)
    group_members: float = number("members of groups, each with a heartbeat every five seconds", default=1.0)
    busy_share: float = number("share of time in which readers poll five times a second", most=1.0, default=1.0)


@dataclass(frozen=True, slots=True)
class PriceFile:
    """The content of a price file that was read and checked."""

    name: str
    currency: str
    as_of: str
    store: StorePrices
    kafka: KafkaPrices | None = None
    use: Use = field(default_factory=Use)
    pubsub: PubsubUse = field(default_factory=PubsubUse)
    assumptions: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The prices' owner, currency and date."""
        return f"{self.name} ({self.currency}, as of {self.as_of})"


def read_prices(path: Path) -> PriceFile:
    """Read a price file: JSON if its name ends in ``.json``, else TOML. Raise one ConfigError that names all faults."""
    try:
        with path.open("rb") as file:
            raw = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"the price file {str(path)!r} cannot be read: {error.strerror}") from error
    if len(raw) > _MOST_BYTES:
        raise ConfigError(f"the price file {str(path)!r} has more than {_MOST_BYTES} bytes: this is not a price file")
    try:
        text = raw.decode()
        document: object = json.loads(text) if path.suffix.lower() == ".json" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the price file {str(path)!r} cannot be parsed: {excerpt(str(error), 200)}") from error
    reader = _Reader()
    prices = reader.prices(document)
    if prices is None or reader.problems:
        raise ConfigError("\n".join([f"the price file {str(path)!r} cannot be used:", *reader.problems]))
    return prices


class _Reader:
    """Converts a parsed document to prices, and collects all faults of the document."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def prices(self, document: object) -> PriceFile | None:
        if not isinstance(document, dict):
            self.problems.append("the document is not an object with the tables store, kafka, use and pubsub")
            return None
        fields = cast("dict[str, object]", document)
        self._refuse_unknown("", fields, {name.name for name in dataclasses.fields(PriceFile)})
        texts = {name: self._text(fields, name) for name in _TEXTS}
        store = self._group("store", fields.get("store", {}), StorePrices)
        kafka = self._group("kafka", fields["kafka"], KafkaPrices) if "kafka" in fields else None
        use = self._group("use", fields.get("use", {}), Use)
        pubsub = self._group("pubsub", fields.get("pubsub", {}), PubsubUse)
        assumptions = self._sentences(fields.get("assumptions", []))
        if store is None or use is None or pubsub is None:
            return None
        return PriceFile(**texts, store=store, kafka=kafka, use=use, pubsub=pubsub, assumptions=assumptions)

    def _group(self, table: str, value: object, group: type[_GroupT]) -> _GroupT | None:
        if not isinstance(value, dict):
            self.problems.append(f"{table} is {_show(value)}, not a table")
            return None
        fields = cast("dict[str, object]", value)
        own = {one.name: one for one in dataclasses.fields(cast("Any", group))}
        self._refuse_unknown(f"{table}.", fields, set(own))
        numbers: dict[str, float] = {}
        for name, about in own.items():
            if name in fields:
                numbers[name] = self._number(f"{table}.{name}", fields[name], about.metadata)
            elif about.default is MISSING:
                self.problems.append(f"{table}.{name} is missing: {about.metadata['means']}")
        return None if self.problems else cast("Callable[..., _GroupT]", group)(**numbers)

    def _number(self, name: str, value: object, about: Mapping[str, float]) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.problems.append(f"{name} is {_show(value)}, not a number ({about['means']})")
            return 0.0
        # Compare the price with its bounds before converting it, because a JSON integer may exceed any float. A NaN
        # is never within the bounds.
        if not about["least"] <= value <= about["most"]:
            self.problems.append(
                f"{name} is {_show(value)}; it must be from {about['least']:g} to {about['most']:g} ({about['means']})"
            )
            return 0.0
        return float(value)

    def _text(self, fields: _Table, name: str) -> str:
        value = fields.get(name)
        if name == "as_of" and value is not None and not isinstance(value, str | int | float | dict | list):
            value = str(value)  # TOML parses a date to a ``date``, not to a text
        if isinstance(value, str) and len(value.strip()) > 0 and len(value) <= _MOST_TEXT:
            return value.strip()
        if value is None:
            self.problems.append(f"{name} is missing: say whose prices these are, of which date, and in which currency")
        else:
            self.problems.append(f"{name} is {_show(fields[name])}, not a text of at most {_MOST_TEXT} characters")
        return ""

    def _sentences(self, value: object) -> tuple[str, ...]:
        shown = _show(value)
        items = cast("list[object]", value) if isinstance(value, list) else [None]
        if not all(isinstance(item, str) for item in items):
            self.problems.append(f"assumptions is {shown}, not a list of sentences")
        return tuple(item for item in items if isinstance(item, str))

    def _refuse_unknown(self, place: str, fields: _Table, known: set[str]) -> None:
        for name in sorted(set(fields) - known):
            hint = did_you_mean(name, known, show=lambda meant: f"{place}{meant}")
            self.problems.append(f"{place}{excerpt(name)} is not known{hint}")


def _show(value: object) -> str:
    return excerpt(repr(value), 60)
