"""The settings of a table that a pipeline's files are entered in, and of tables of Hive for directories."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import Field, model_validator

from tieredstore.config.fields import broken_rule
from tieredstore.config.properties import shown_name
from tieredstore.config.source import SettingProblem, SettingsReader
from tieredstore.config.values import choice, string
from tieredstore.pipelines.config.naming_settings import NamingSettings

if TYPE_CHECKING:
    from tieredstore.config import Settings

HIVE_TABLE: Final = "hive.table.name."
CATALOG: Final = "table.iceberg.catalog."


def _iceberg_name(text: str) -> str:
    if not re.fullmatch(r"(\w+\.)+\w+", text, re.ASCII):
        raise ValueError
    return text


def _catalog_name(text: str) -> str:
    if not re.fullmatch(r"[\w-]+", text, re.ASCII):
        raise ValueError
    return text


def _table_prefix(text: str) -> str:
    if not re.fullmatch(r"(\w+\.)?\w*", text, re.ASCII):
        raise ValueError
    return text


class TableSettings(NamingSettings):
    """Which table has the files."""

    hive_prefix: Annotated[str, string("letters, digits and _, behind a database and a dot", _table_prefix)] = Field(
        default="",
        alias="hive.table.prefix",
        description="Begins the names of Hive's tables of topics that no `hive.table.name.TOPIC` names one for.",
    )

    table: Annotated[str, choice("none", "iceberg")] = Field(
        default="none",
        alias="table",
        description=f"iceberg: each batch's files are added to a table of Iceberg; `{CATALOG}*` says in which catalog.",
    )
    table_name: Annotated[str, string("namespace.table", _iceberg_name)] = Field(
        default="", alias="table.iceberg.name", description="That table, made if it is not there."
    )
    table_catalog: Annotated[str, string("letters, digits, _ and -", _catalog_name)] = Field(
        default="default",
        alias="table.iceberg.catalog",
        description="The catalog's name: that of an entry of pyiceberg's own settings, or any.",
    )

    @model_validator(mode="after")
    def _has_name(self) -> TableSettings:
        if self.table == "iceberg" and not self.table_name:
            raise broken_rule("table.iceberg.name", "is missing; table=iceberg needs it")
        return self


def hive_tables(rest: Mapping[str, str], reader: SettingsReader) -> tuple[tuple[str, str], ...]:
    """Hive's tables by topic; notes what is no table's name."""
    tables = {name.removeprefix(HIVE_TABLE): text.strip() for name, text in rest.items() if name.startswith(HIVE_TABLE)}
    for topic, table in tables.items():
        if not topic or not re.fullmatch(r"(\w+\.)?\w+", table, re.ASCII):
            name = f"{HIVE_TABLE}{topic}"
            reader.problems.append(
                SettingProblem(name, f"{shown_name(name)} is no table's name: give [database.]table")
            )
    return tuple(sorted(tables.items()))


def catalog_properties(rest: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """What pyiceberg is told of the catalog; any of it may be a secret."""
    return tuple(sorted((name.removeprefix(CATALOG), text) for name, text in rest.items() if name.startswith(CATALOG)))


def refused_of_table(own: TableSettings, file_format: str, output: Settings, hive: Sequence[object]) -> str:
    """Why files of this output cannot be entered in the table, or in those of Hive's; empty if they can."""
    if (own.hashed or own.alternative_since) and (hive or own.hive_prefix):
        return (
            "tables of Hive need all directories of a topic below one: leave secor.s3.prefix.md5hash and "
            "secor.s3.alter.path.date out, or hive.table.*"
        )
    if own.table == "none":
        return ""
    if file_format != "parquet":
        return f"table=iceberg needs files of parquet, and these are {file_format}: leave one of the two out"
    if output.storage_backend not in {"filesystem", "s3"}:
        return "table=iceberg needs an output in a folder or on S3: other stores are not known to it"
    if not output.endpoint.is_default:
        return "table=iceberg needs an output with one place and the usual layout: leave output.rsm.config.* out"
    return ""
