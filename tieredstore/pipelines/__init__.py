"""Pipelines: a topic's records kept as files, as they came or filed by date or field, each exactly once."""

from __future__ import annotations

from tieredstore.pipelines.config.settings import (
    Pipeline,
    PipelineSettings,
    load_pipeline,
    pipeline_from,
    with_generation,
)
from tieredstore.pipelines.log.commit_log import CommitLog
from tieredstore.pipelines.log.entries import Entry, OutputFile, WrittenWindow
from tieredstore.pipelines.run.driver import Driver
from tieredstore.pipelines.run.parts import Parts
from tieredstore.pipelines.run.runner import Runner

__all__ = [
    "CommitLog",
    "Driver",
    "Entry",
    "OutputFile",
    "Parts",
    "Pipeline",
    "PipelineSettings",
    "Runner",
    "WrittenWindow",
    "load_pipeline",
    "pipeline_from",
    "with_generation",
]
