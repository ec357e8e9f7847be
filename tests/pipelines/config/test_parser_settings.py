"""Settings that belong to one parser, declared by a row of a table; a custom class takes ``parser.*``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest

from tests.support.fresh_python import run_fresh
from tests.support.pipelines.pipeline_runs import pipeline_of, texts
from tieredstore.config.fields import SettingsGroup
from tieredstore.errors import ConfigError
from tieredstore.pipelines.config.settings import CHAPTERS, PipelineSettings
from tieredstore.pipelines.parser_table import parser_of, parser_settings
from tieredstore.pipelines.parsers import MessageParser
from tieredstore.pipelines.run.recipes import fingerprint_of

PARSER = "secor.message.parser.class"


@dataclass(frozen=True)
class ByStart(MessageParser):
    """Parser that files messages by the first ``parser.length`` bytes of the key."""

    length: int = 1

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> ByStart:
        if not (text := options.get("length", "1")).isdecimal():
            raise ConfigError(f"parser.length is {text!r}: give a number")
        return cls(int(text))

    def parts(
        self, key: bytes | None, value: bytes | None, timestamp_ms: int, offset: int
    ) -> Sequence[tuple[str, str]]:
        return [("key=", (key or b"")[: self.length].decode())]


class WithoutOptions(MessageParser):
    def parts(
        self, key: bytes | None, value: bytes | None, timestamp_ms: int, offset: int
    ) -> Sequence[tuple[str, str]]:
        return []


BY_START = {PARSER: f"{__name__}:ByStart"}

FINGERPRINTS: list[tuple[Mapping[str, str], str]] = [
    (
        {"secor.offsets.per.partition": "100", "secor.offsets.prefix": "offset="},
        "e244bd4c13b00d9d1bd876331c4c1137ffadc133ef37554022f1de8caffad34f",
    ),
    (
        {PARSER: "regex", "message.timestamp.input.pattern": "at (.*)", "secor.parser.strict": "true"},
        "59f10b77081adf1c3ae00a8b2a62d1990bcb2a7c88f6d155862bab86d88ce35a",
    ),
    (
        {
            PARSER: "split-by-field",
            "message.split.field.name": "kind",
            "partitioner.granularity.field.prefix": "k=",
        },
        "c74008229c6fd830bb9396cf1c51465d6e58dfe7ab25d261d05cfa123a114aab",
    ),
    (
        {PARSER: "thrift", "message.timestamp.id": "3.1", "secor.thrift.protocol.class": "compact"},
        "687431a3b4cfebd0bc24753dda7ebd931b4681c449f6cdbc5909ed6e2f3aa5be",
    ),
    (
        # Settings of another parser still count in the fingerprint, as they did before the table declared them.
        {PARSER: "json", "message.split.field.name": "kind", "partitioner.granularity.hour": "true"},
        "0ddf902634ffd565f9b0fd74a9b32bc040e7086051c91cc7b0c5d61faea6c2c7",
    ),
    (
        {PARSER: "tests.pipelines.filing.test_filing:ByLength"},
        "119497ca29f5d00bfdf6d87f42160886fef8e847f48f5e867eb9c55a9a6efda4",
    ),
]


@pytest.mark.parametrize(("changes", "fingerprint"), FINGERPRINTS, ids=[str(number) for number in range(6)])
def test_pipelines_keep_their_fingerprints(changes: Mapping[str, str], fingerprint: str) -> None:
    assert fingerprint_of(pipeline_of(**texts(changes)).own) == fingerprint


def test_no_two_settings_share_a_name_in_fingerprints() -> None:
    groups: list[type[SettingsGroup]] = [PipelineSettings, *CHAPTERS.values(), *parser_settings()]
    names = Counter(name for group in groups for name in group.model_fields)
    assert [name for name, count in names.items() if count > 1] == ["name"]


@pytest.mark.slow
def test_a_row_is_all_that_a_parser_with_a_setting_needs() -> None:
    printed = run_fresh("""
    from typing import Annotated
    import pydantic
    from tieredstore.config.fields import SettingsGroup
    from tieredstore.config.values import integer
    from tieredstore.pipelines import parser_table
    from tieredstore.pipelines.parsers import OffsetParser

    class RoundSettings(SettingsGroup):
        round_to: Annotated[int, integer(1, 64)] = pydantic.Field(default=7, alias="round.to", description="Steps.")

    row = parser_table.ParserKind(
        lambda own, _: OffsetParser(own.of_parser(RoundSettings).round_to), settings=RoundSettings, needs="round.to"
    )
    parser_table.PARSERS["round"] = row

    from tests.support.pipelines.pipeline_runs import pipeline_of, texts
    from tests.support.reference.pipeline_tables import honoured_names, settings_table
    from tieredstore.errors import ConfigError
    from tieredstore.pipelines.parser_table import parser_of
    from tieredstore.pipelines.run.recipes import fingerprint_of

    def own(**more):
        return pipeline_of(**texts({"secor.message.parser.class": "round"}), **more).own

    assert parser_of(own(round__to="3")) == OffsetParser(3)
    assert fingerprint_of(own(round__to="3")) != fingerprint_of(own(round__to="4"))
    for more in ({}, {"round__to": "65"}):
        try:
            own(**more)
        except ConfigError as error:
            print(error)
    print("`round.to` | int `7`, 1..64 | Steps." in settings_table(), "round.to" in honoured_names())
    """)
    assert printed.splitlines() == [
        "pipeline: round.to is missing; the parser round needs it",
        "pipeline: round.to is '65'; it must be an int: 1..64",
        "True False",
    ]


def test_a_class_of_ones_own_takes_options() -> None:
    def made(**options: str) -> ByStart:
        parser = parser_of(pipeline_of(**texts(BY_START), **options).own)
        assert isinstance(parser, ByStart)
        return parser

    assert made() == ByStart(1)
    assert made(parser__length="3") == ByStart(3)
    with pytest.raises(ConfigError, match=r"parser\.length is 'x': give a number"):
        made(parser__length="x")
    marked = [fingerprint_of(pipeline_of(**texts({**BY_START, **one})).own) for one in (
        {}, {"parser.length": "3"}, {"parser.length": "4"}, {"parser.a": "1", "parser.b": "2"},
    )]  # fmt: skip
    assert len(set(marked)) == 4
    assert fingerprint_of(pipeline_of(**texts({**BY_START, "parser.b": "2", "parser.a": "1"})).own) == marked[3]


def test_options_that_nobody_takes_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"parser\.size is set, but .*:WithoutOptions has no options"):
        parser_of(pipeline_of(**texts({PARSER: f"{__name__}:WithoutOptions", "parser.size": "3"})).own)
    words = r"parser\.size is only for a parser of your own, not for offset: leave it out"
    with pytest.raises(ConfigError, match=words):
        pipeline_of(parser__size="3")
