"""When files end, and windows of them are written: the settings, as Secor names them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from tieredstore.config.fields import broken_rule
from tieredstore.config.values import BOOLEAN, compiled, integer, long, string
from tieredstore.pipelines.config.table_settings import TableSettings


def regex(text: str) -> str:
    """What is one; ValueError for anything else."""
    compiled(text)
    return text


class PolicySettings(TableSettings):
    """By which sizes, ages and numbers."""

    max_file_bytes: Annotated[int, long(1)] = Field(
        default=200000000,
        alias="secor.max.file.size.bytes",
        description="A window is so many bytes of the log, and a file ends at the record that reaches it.",
    )
    max_file_age_s: Annotated[int, long(0)] = Field(
        default=3600,
        alias="secor.max.file.age.seconds",
        description="Records are written at the latest so long after the first unwritten one was seen.",
    )
    max_file_records: Annotated[int, long(0)] = Field(
        default=0, alias="max.file.records", description="A file ends at this many records; 0: at none."
    )
    minute_mark: Annotated[int, integer(0, 59)] = Field(
        default=0,
        alias="secor.upload.minute_mark",
        description="The minute of each hour at which records are written that were seen before it.",
    )
    minute_mark_filter: Annotated[str, string("a regular expression", regex)] = Field(
        default="",
        alias="secor.kafka.upload_at_minute_mark.topic_filter",
        description="Topics of which that is done; unset, of none.",
    )
    upload_on_shutdown: Annotated[bool, BOOLEAN] = Field(
        default=False,
        alias="secor.upload.on.shutdown",
        description="Whether a service that is stopped first writes all that there is.",
    )
    is_deterministic: Annotated[bool, BOOLEAN] = Field(
        default=False,
        alias="secor.upload.deterministic",
        description="Whether all files of a partition end together by the next two, and not by size and mark.",
    )
    max_payload_bytes: Annotated[int, long(0)] = Field(
        default=0,
        alias="secor.max.input.payload.size.bytes",
        description="If so, files end at the record with which the values of all reach so many bytes; 0: at none.",
    )
    max_range_ms: Annotated[int, long(0)] = Field(
        default=0,
        alias="secor.max.file.timestamp.range.millis",
        description="If so, files end at the record with which the times of all reach over so much; 0: at none.",
    )
    max_open_files: Annotated[int, long(-1)] = Field(
        default=-1,
        alias="secor.max.file.count",
        description="So many files of a window are under way at most; the stalest is ended. -1: any number.",
    )

    @model_validator(mode="after")
    def _has_one_kind_of_limits(self) -> PolicySettings:
        if self.is_deterministic and not (self.max_payload_bytes or self.max_range_ms):
            raise broken_rule(
                "secor.upload.deterministic",
                "needs secor.max.input.payload.size.bytes or secor.max.file.timestamp.range.millis",
            )
        if self.is_deterministic and self.upload_on_shutdown:
            raise broken_rule("secor.upload.deterministic", "excludes secor.upload.on.shutdown")
        return self
