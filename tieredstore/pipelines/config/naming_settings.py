"""How files are named and where their directories lie: the settings, as Secor names them."""

from __future__ import annotations

import re
from datetime import date
from typing import Annotated

from pydantic import Field, model_validator

from tieredstore.config.fields import broken_rule
from tieredstore.config.values import BOOLEAN, choice, string
from tieredstore.pipelines.config.group_settings import GroupSettings
from tieredstore.pipelines.filing.directories import java_format


def _day(text: str) -> str:
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", text):
        raise ValueError
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise ValueError from None


def _root(text: str) -> str:
    """With the slash at its end that Secor adds."""
    path = text.strip("/")
    if not path or any(part in {"", ".", ".."} for part in path.split("/")):
        raise ValueError
    return f"{path}/"


class NamingSettings(GroupSettings):
    """What keys are made of, beside topic and directory."""

    name_offset: Annotated[str, choice("file", "window")] = Field(
        default="file",
        alias="name.offset",
        description="The offset in a file's name: the first in that file; or, as in Secor's, the first of its window, "
        "all of whose directories have it then.",
    )
    hashed: Annotated[bool, BOOLEAN] = Field(
        default=False,
        alias="secor.s3.prefix.md5hash",
        description="Whether keys begin with four digits of the MD5 of topic and directory, in any store.",
    )
    alternative_root: Annotated[str, string("a path", _root)] = Field(
        default="",
        alias="secor.s3.alternative.path",
        description="In place of `output.key.prefix` for directories of later days, a slash behind it.",
    )
    alternative_since: Annotated[str, string("a day, as 2026-01-31", _day)] = Field(
        default="", alias="secor.s3.alter.path.date", description="The first of these days; unset, there are none."
    )

    @model_validator(mode="after")
    def _has_days(self) -> NamingSettings:
        """Secor fails at the first file without a day."""
        if not self.alternative_since:
            return self
        if not self.alternative_root:
            raise broken_rule("secor.s3.alternative.path", "is missing; secor.s3.alter.path.date needs it")
        if self.parser == "offset":
            raise broken_rule("secor.s3.alter.path.date", "needs directories of days, and the parser offset has none")
        codes = java_format(self.date_format, "partitioner.granularity.date.format")
        has_day = all(any(code in codes for code in codes_of) for codes_of in (("%Y", "%y"), ("%m",), ("%d",)))
        if "/" in codes or not has_day:
            raise broken_rule(
                "secor.s3.alter.path.date",
                "needs a partitioner.granularity.date.format that tells year, month and day in one level",
            )
        return self
