"""Typed parts of the settings out of texts, and one error for all that is wrong with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError

from tieredstore.config.properties import OwnProperties
from tieredstore.config.values import Kind
from tieredstore.errors import ConfigError


class Part(BaseModel):
    """Base of the settings: frozen; a field's alias is its property's name, its :class:`Kind` reads the text."""

    # hide_input_in_errors: pydantic's own error text must not hold a secret either
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


PartT = TypeVar("PartT", bound=Part)


def property_fields(part: type[Part]) -> Iterator[tuple[str, FieldInfo, Kind]]:
    """Name, field and kind of each property that ``part`` reads, in the order of the class."""
    for info in part.model_fields.values():
        if info.alias is not None:
            yield info.alias, info, next(kind for kind in info.metadata if isinstance(kind, Kind))


def property_names(part: type[Part]) -> list[str]:
    """The names of the properties that ``part`` reads."""
    return [name for name, _, _ in property_fields(part)]


def broken_rule(name: str, why: str) -> PydanticCustomError:
    """The error of a rule between properties, for a validator to raise; ``why`` is a sentence without values."""
    return PydanticCustomError("rule", "{why}", {"name": name, "why": why})


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: the property it is about (without prefix), and the words."""

    name: str
    words: str


@dataclass(slots=True)
class SettingsReader:
    """Reads the parts of the settings of one source and gathers what is wrong with it."""

    own: OwnProperties
    base_dir: Path = field(default_factory=Path)
    problems: list[Problem] = field(default_factory=list[Problem])
    values: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self.values = self.own.values

    def read(self, part: type[PartT], *, under: str = "", given: Mapping[str, object] | None = None) -> PartT | None:
        """The part, or None after noting its problems. ``under`` precedes the names; ``given`` are other fields."""
        texts = {name: self.values[under + name] for name in property_names(part) if under + name in self.values}
        try:
            return part.model_validate({**texts, **(given or {})}, context={"base_dir": self.base_dir})
        except ValidationError as error:
            kinds = {name: kind for name, _, kind in property_fields(part)}
            self.problems += [self._problem(details, kinds, under) for details in error.errors()]
            return None

    def _problem(self, details: ErrorDetails, kinds: dict[str, Kind], under: str) -> Problem:
        context = details.get("ctx", {})
        if details["type"] == "rule":
            return Problem(context["name"], f"{self.written(context['name'])} {context['why']}")
        name = str(details["loc"][0])
        kind, written = kinds[name], self.written(under + name)
        if details["type"] == "missing":
            return Problem(under + name, f"{written} is missing; expected is {kind.allowed}")
        why = str(context.get("error", "")) or f"expected is {kind.allowed}"
        return Problem(under + name, f"{written} is {kind.show(self.values[under + name])}; {why}")

    def note(self, name: str, why: str) -> None:
        """Note a problem with a property; ``why`` goes on after its name."""
        self.problems.append(Problem(name, f"{self.written(name)} {why}"))

    def written(self, name: str) -> str:
        """The property's name as the source writes it, with the prefix."""
        return self.own.prefix + name

    def result(self, part: PartT | None) -> PartT:
        """``part`` if nothing was noted, else ConfigError: the first problem in the source's order, how many more."""
        if part is not None and not self.problems:
            return part
        order = {name: place for place, name in enumerate(self.values)}
        first = min(self.problems, key=lambda problem: order.get(problem.name, len(order)))
        more = len(self.problems) - 1
        rest = f" (and {more} more problem{'s' if more > 1 else ''})" if more else ""
        raise ConfigError(f"{self.own.source}: {first.words}{rest}")
