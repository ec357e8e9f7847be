"""Reads groups of settings from the texts of one source, and raises one error for all problems in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from pydantic import SecretStr, ValidationError
from pydantic_core import ErrorDetails

from tieredstore.config.fields import SettingsGroup, property_fields, property_names
from tieredstore.config.properties import OwnProperties, shown_name
from tieredstore.config.values import Kind
from tieredstore.errors import ConfigError

MAX_SHOWN: Final = 20
"""The maximum number of problems in one error. A file that is not a settings file may have thousands."""

GroupT = TypeVar("GroupT", bound=SettingsGroup)


@dataclass(frozen=True, slots=True)
class SettingProblem:
    """A problem: a property's name (without prefix), and a sentence about it."""

    name: str
    words: str


@dataclass(slots=True)
class SettingsReader:
    """Reads groups of settings from one source, and collects the problems in them."""

    own: OwnProperties
    base_dir: Path = field(default_factory=Path)
    problems: list[SettingProblem] = field(default_factory=list[SettingProblem])
    values: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self.values = self.own.values

    def read(
        self, group: type[GroupT], *, under: str = "", fields: Mapping[str, object] | None = None
    ) -> GroupT | None:
        """Return the group of settings. If any of its values is invalid, add the faults to ``problems`` and return
        None.

        ``under`` is the prefix of the group's properties. ``fields`` has the values of those fields that are not
        properties.
        """
        # Pass only names that the group knows. The module ``names`` reports unknown names.
        texts = {name: self.values[under + name] for name in property_names(group) if under + name in self.values}
        given: dict[str, object] = {**texts, **(fields or {})}
        if beginning := group.client_properties:
            client = ((name, text) for name, text in self.values.items() if name.startswith(beginning))
            given["kafka"] = tuple((name.removeprefix(beginning), SecretStr(text)) for name, text in client)
        try:
            return group.model_validate(given, context={"base_dir": self.base_dir})
        except ValidationError as error:
            kinds = {name: kind for name, _, kind in property_fields(group)}
            self.problems += [self._problem(details, kinds, under) for details in error.errors()]
            return None

    def _problem(self, details: ErrorDetails, kinds: dict[str, Kind], under: str) -> SettingProblem:
        context = details.get("ctx", {})
        # An error of one of this package's validators contains the property's name. Pydantic's own location would name
        # only the group.
        if details["type"] == "rule":
            return SettingProblem(context["name"], f"{self.spell(context['name'])} {context['why']}")
        name = str(details["loc"][0])
        kind, written = kinds[name], self.spell(under + name)
        if details["type"] == "missing":
            return SettingProblem(under + name, f"{written} is missing; {_rule(kind)}")
        why = str(context.get("error", "")) or _rule(kind)
        return SettingProblem(under + name, f"{written} is {kind.show(self.values[under + name])}; {why}")

    def note(self, name: str, why: str) -> None:
        """Record a problem with a property; ``why`` continues the sentence after the property's name."""
        self.problems.append(SettingProblem(name, f"{self.spell(name)} {why}"))

    def note_stray(self, name: str, why: str) -> None:
        """Record a problem with a text that may be no property's name. Shorten it if it does not look like a name."""
        self.problems.append(SettingProblem(name, f"{self.spell(shown_name(name))} {why}"))

    def spell(self, name: str) -> str:
        """Return the property's name as the source writes it, with the prefix."""
        return self.own.prefix + name

    def result(self, group: GroupT | None) -> GroupT:
        """Return ``group`` if no problem was recorded; else raise ConfigError with all problems, one per line."""
        if group is not None and not self.problems:
            return group
        # List problems in the order of the file. Problems of properties that are absent from the file come last.
        order = {name: position for position, name in enumerate(self.values)}
        in_order = sorted(self.problems, key=lambda problem: order.get(problem.name, len(order)))
        if len(in_order) == 1:
            raise ConfigError(f"{self.own.source}: {in_order[0].words}")
        lines = [problem.words for problem in in_order[:MAX_SHOWN]]
        if len(in_order) > MAX_SHOWN:
            lines.append(f"… and {len(in_order) - MAX_SHOWN} more")
        raise ConfigError("\n  ".join([f"{self.own.source}: {len(in_order)} settings are wrong:", *lines]))


def _rule(kind: Kind) -> str:
    return f"it must be {'an' if kind.type.startswith('i') else 'a'} {kind.allowed}"
