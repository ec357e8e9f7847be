"""The price file: what storage, requests and traffic cost, in TOML or JSON. The user writes it.

No price is built in. A price file has these tables; each number's name contains its unit::

    name, currency, as_of, assumptions     whose prices, and their date
    [store]    the object store            always
    [kafka]    brokers' disks and zones    the cost of the same log there; optional
    [use]      the number of reads         unknown from listings; default 0
    [pubsub]   the use of topics of batches   their throughput, retention, readers

Each table is a frozen dataclass whose fields are described by :func:`number`. To add a table, add its class, and a
field of ``PriceFile``. A GiB has 2^30 bytes; most clouds call it a GB. A month has 30 days.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, cast

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError, with_config

from tieredstore.config.nearest import did_you_mean
from tieredstore.errors import ConfigError, excerpt

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_MOST_BYTES: Final = 1 << 18
_GREATEST: Final = 1e12


def number(means: str, *, least: float = 0.0, most: float = _GREATEST) -> Any:
    """Describe a number by its meaning and its bounds (inclusive)."""
    return Field(ge=least, le=most, allow_inf_nan=False, strict=True, description=means)


@with_config(extra="forbid")
@dataclass(frozen=True, slots=True)
class StorePrices:
    """``[store]``: the prices of the object store."""

    storage_gib_month: Annotated[float, number("a GiB that is stored for a month")]
    write_1000: Annotated[float, number("1,000 writing requests: PUT, POST, a part, a block")]
    list_1000: Annotated[float, number("1,000 listings")]
    read_1000: Annotated[float, number("1,000 reading requests: GET, HEAD")]
    write_gib: Annotated[float, number("a GiB that is written, in addition to the requests")]
    read_gib: Annotated[float, number("a GiB that is read: retrieval, and transfer to the reader")]


@with_config(extra="forbid")
@dataclass(frozen=True, slots=True)
class KafkaPrices:
    """``[kafka]``: prices for keeping the same log on brokers."""

    disk_gib_month: Annotated[float, number("a GiB of a broker's disk for a month")]
    disk_fill: Annotated[
        float, number("share of each disk that is used, 0 to 1; unused space costs the same", least=0.01, most=1.0)
    ]
    replication_factor: Annotated[float, number("replicas of each partition", least=1, most=100)]
    zones: Annotated[float, number("zones that the brokers are in", least=1, most=100)]
    cross_zone_gib: Annotated[float, number("a GiB from one zone to another, sum of both zones' charges")]
    moved_per_month: Annotated[float, number("how often in a month a replica's bytes are copied to another broker")]
    local_days: Annotated[float, number("days of a log that are on brokers' disks and in the bucket")]


@with_config(extra="forbid")
@dataclass(frozen=True, slots=True)
class Use:
    """``[use]``: how often stored data are read and listed. The user must give these numbers, because a bucket does not
    record them."""

    direct_reads_per_month: Annotated[
        float, number("how often all data are read in a month, from the bucket itself")
    ] = 0.0
    broker_reads_per_month: Annotated[float, number("how often all data are read through brokers in a month")] = 0.0
    listings_per_month: Annotated[float, number("how often all data are listed in a month")] = 0.0


@with_config(extra="forbid")
@dataclass(frozen=True, slots=True)
class PubsubUse:
    """``[pubsub]``: how topics of batches are used. In some fields, 0 means that the number is derived from the topic's
    batches.
    """

    throughput_mib_s: Annotated[
        float, number("stored MiB that are published per second; 0: the rate of the last 30 days")
    ] = 0.0
    retention_days: Annotated[float, number("days that batches are kept; 0: the stored size stays constant")] = 0.0
    readers: Annotated[float, number("how often each record is read, by groups and queries")] = 1.0
    group_members: Annotated[float, number("members of groups, each with a heartbeat every five seconds")] = 1.0
    busy_share: Annotated[float, number("share of time in which readers poll five times a second", most=1.0)] = 1.0


def _show_date(value: object) -> object:
    """Return a date as text, because TOML parses ``as_of = 2026-01-31`` to a date."""
    return str(value) if isinstance(value, date) else value


_Text: TypeAlias = Annotated[
    str,
    BeforeValidator(_show_date),
    Field(min_length=1, max_length=200, description="say whose prices these are, of which date, and in which currency"),
]


@with_config(extra="forbid", str_strip_whitespace=True)
@dataclass(frozen=True, slots=True)
class PriceFile:
    """The content of a price file that was read and checked."""

    name: _Text
    currency: _Text
    as_of: _Text
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
        repr(document)  # raises ValueError for a hexadecimal number of TOML that is too long to show in a sentence
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the price file {str(path)!r} cannot be parsed: {excerpt(str(error), 200)}") from error
    if not isinstance(document, dict):
        raise ConfigError(
            f"the price file {str(path)!r} cannot be used: the document is not an object with the tables store, kafka, "
            "use and pubsub"
        )
    try:
        return _FILE.validate_python({"store": {}, **cast("dict[str, object]", document)})
    except ValidationError as invalid:
        faults = map(_describe, invalid.errors(include_url=False))
        raise ConfigError("\n".join([f"the price file {str(path)!r} cannot be used:", *faults])) from None


_FILE: Final = TypeAdapter(PriceFile)
_TABLES: Final[Mapping[str, type[object]]] = {
    "store": StorePrices,
    "kafka": KafkaPrices,
    "use": Use,
    "pubsub": PubsubUse,
}


def _describe(fault: ErrorDetails) -> str:
    """Return a fault as a sentence with the name, the value and the meaning of the field."""
    table, name = ("", *map(str, fault["loc"]))[-2:]
    fields: dict[str, dict[str, Any]] = TypeAdapter(_TABLES.get(table, PriceFile)).json_schema()["properties"]
    within, about, shown = f"{table}." if table else "", fields.get(name, {}), excerpt(repr(fault["input"]), 60)
    place, means = f"{within}{excerpt(name)}", about.get("description")
    match "missing" if means and fault["input"] is None else fault["type"]:
        case "unexpected_keyword_argument":
            return f"{place} is not known{did_you_mean(name, fields, show=lambda meant: f'{within}{meant}')}"
        case "missing":
            return f"{place} is missing: {means}"
        case "float_type":
            return f"{place} is {shown}, not a number ({means})"
        case "greater_than_equal" | "less_than_equal" | "finite_number":
            return f"{place} is {shown}; it must be from {about['minimum']:g} to {about['maximum']:g} ({means})"
        case "dataclass_type":
            return f"{place} is {shown}, not a table"
        case "tuple_type":
            return f"{place} is {shown}, not a list of sentences"
        case _:
            return f"{place} is {shown}, not a text of at most 200 characters"
