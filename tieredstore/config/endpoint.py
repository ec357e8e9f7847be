"""Settings of places (``endpoint.*``). A place is the store and key layout of a topic's segments."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import Field, SecretStr, model_validator

from tieredstore.config.fields import SettingsGroup, broken_rule
from tieredstore.config.values import NAME, Kind, choice, compile_pattern, integer, string, words

if TYPE_CHECKING:
    from tieredstore.config.source import SettingsReader

ENDPOINT: Final = "endpoint."
RULES: Final = "endpoint.rules"
BITS: Final = "endpoint.prefix.entropy.bits"
CLUSTER: Final = "endpoint.cluster"
LAYOUT: Final = "endpoint.layout"
UPLOADER_LAYOUT: Final = "uploader.layout"

PLUGIN: Final = "plugin"
PINTEREST: Final = "pinterest"

MOST_BITS: Final = 16
"""The maximum of entropy bits. A listing of all topics takes a request for each of the 2**bits folders. Pinterest's
uploader allows 128 bits.
"""

_RULE_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_STORAGE: Final = "storage."


def check_pattern(text: str) -> None:
    """Raise ValueError if ``text`` is empty or not a regular expression."""
    try:
        compile_pattern(text)
    except ValueError as error:
        raise ValueError(f"{text!r:.80} {error}") from None
    if not text:
        raise ValueError


def _rule_name(text: str) -> None:
    if not _RULE_NAME.fullmatch(text):
        raise ValueError


def _cluster(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", text):
        raise ValueError
    return text


_LAYOUTS: Final = choice(PLUGIN, PINTEREST)
PATTERNS: Final[Kind] = words("regular expressions, separated by commas", check_pattern)


class EndpointRule(SettingsGroup):
    """One rule of ``endpoint.rules``: the place of topics whose whole name matches one of the patterns.

    ``storage`` are the store's properties that differ from the settings, as pairs of name and text.
    """

    name: str = ""
    topics: Annotated[tuple[str, ...], PATTERNS] = Field(
        alias="topics", description="Topics that this rule applies to. A pattern must match the whole name."
    )
    url: Annotated[str | None, NAME] = Field(
        default=None,
        alias="url",
        description=(
            "URL of the store that holds the topics, written as for `--store`. If unset, the topics are in the "
            "store of the settings."
        ),
    )
    prefix: Annotated[str | None, string()] = Field(
        default=None,
        alias="prefix",
        description="`key.prefix` of these topics. If unset, the prefix of the rule's URL or of the settings is used.",
    )
    storage: tuple[tuple[str, SecretStr], ...] = ()

    def holds(self, topic: str) -> bool:
        """Return True if a pattern matches the whole topic name."""
        return any(re.fullmatch(pattern, topic) for pattern in self.topics)

    @model_validator(mode="after")
    def _leads_elsewhere(self) -> EndpointRule:
        if not self.topics:
            raise broken_rule(
                f"{RULES}.{self.name}.topics",
                "is empty, so the rule matches no topic: list patterns or remove the rule",
            )
        if self.url is None and self.prefix is None:
            raise broken_rule(f"{RULES}.{self.name}.url", "is missing: set the rule's url, its prefix, or both")
        return self


class EndpointSettings(SettingsGroup):
    """Places of topics. ``rules`` are tried in order; a topic without a rule is in the settings' own store.

    ``texts`` are all properties of the settings' own store. A rule for another store overrides some of these
    properties. Relative paths in ``texts`` start from ``base_dir``.
    """

    rule_names: Annotated[tuple[str, ...], words("names, separated by commas", _rule_name)] = Field(
        default=(),
        alias=RULES,
        description=(
            "Names of the rules that say where topics are stored. If several rules match a topic, the first is used."
        ),
    )
    provider_class: Annotated[str | None, NAME] = Field(
        default=None,
        alias="endpoint.provider.class",
        description=(
            "Python class `module.Class` that says where topics are stored, in place of rules. It must be a "
            "subclass of `tieredstore.places.EndpointProvider`."
        ),
    )
    entropy_bits: Annotated[int, integer(0, MOST_BITS)] = Field(
        default=0,
        alias=BITS,
        description=(
            "Number of bits of MD5(`cluster-topic-partition`) to write after the prefix in keys. The JVM plugin "
            "cannot read such keys."
        ),
    )
    cluster: Annotated[str | None, string("letters, digits, '.', '_' and '-'", _cluster)] = Field(
        default=None,
        alias=CLUSTER,
        description=(
            "Name of the cluster in keys. Required for `endpoint.prefix.entropy.bits` and for the layout `pinterest`."
        ),
    )
    layout: Annotated[str | None, _LAYOUTS] = Field(
        default=None,
        alias=LAYOUT,
        description=(
            "`plugin` (default): the plugin's objects. `pinterest`: raw segment files, as Pinterest's uploader "
            "stores them."
        ),
    )
    uploader_layout: Annotated[str | None, _LAYOUTS] = Field(
        default=None, alias=UPLOADER_LAYOUT, description=f"Another name of `{LAYOUT}`."
    )
    rules: tuple[EndpointRule, ...] = ()
    texts: tuple[tuple[str, SecretStr], ...] = ()
    base_dir: Path = Path()

    @property
    def is_raw(self) -> bool:
        """True if segments are stored as Pinterest's uploader stores them."""
        return PINTEREST in (self.layout, self.uploader_layout)

    @property
    def is_default(self) -> bool:
        """True if everything is in one store, in the plugin's layout."""
        return not (self.rules or self.provider_class or self.entropy_bits or self.is_raw)

    @model_validator(mode="after")
    def _fits_together(self) -> EndpointSettings:
        if self.layout and self.uploader_layout and self.layout != self.uploader_layout:
            raise broken_rule(UPLOADER_LAYOUT, f"differs from {LAYOUT}: set only one of the two")
        if self.rule_names and self.provider_class:
            raise broken_rule(RULES, "cannot be set together with endpoint.provider.class: set only one of the two")
        if self.cluster is None and self.entropy_bits:
            raise broken_rule(CLUSTER, f"is missing: {BITS} is set, so set the cluster's name")
        if self.cluster is None and self.is_raw:
            raise broken_rule(CLUSTER, "is missing: the layout is pinterest, so set the cluster's name")
        return self


def read_endpoint(reader: SettingsReader) -> EndpointSettings | None:
    """Return the settings ``endpoint.*``; None if the reader has recorded problems."""
    settings = reader.read(EndpointSettings)
    if settings is None:
        return None
    for name in reader.values:
        rule = rule_of(name)
        if rule is not None and rule[0] not in settings.rule_names:
            reader.note(
                name,
                f"belongs to a rule that {RULES} does not list: add the name to the list or remove this property",
            )
    rules = [_rule(reader, name) for name in settings.rule_names]
    if settings.is_default and not rules:
        return settings
    texts = tuple(
        (name, SecretStr(text)) for name, text in reader.values.items() if not name.startswith((ENDPOINT, "uploader."))
    )
    read = tuple(rule for rule in rules if rule is not None)
    return settings.model_copy(update={"rules": read, "texts": texts, "base_dir": reader.base_dir})


def rule_of(name: str) -> tuple[str, str] | None:
    """Return the rule of a property, and the property's name within the rule; None for any other property."""
    rest = name.removeprefix(f"{RULES}.")
    rule, dot, own = rest.partition(".")
    if rest == name or not dot or not _RULE_NAME.fullmatch(rule):
        return None
    return (rule, own) if own in {"topics", "url", "prefix"} or own.startswith(_STORAGE) else None


def _rule(reader: SettingsReader, name: str) -> EndpointRule | None:
    under = f"{RULES}.{name}."
    storage = tuple(
        (key.removeprefix(under), SecretStr(text))
        for key, text in reader.values.items()
        if key.startswith(under + _STORAGE)
    )
    return reader.read(EndpointRule, under=under, fields={"name": name, "storage": storage})
