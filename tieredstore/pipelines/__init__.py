"""Pipelines: a topic's records kept as files, as they came or filed by date or field, each exactly once."""

from __future__ import annotations

from tieredstore.pipelines.commit_log import CommitLog
from tieredstore.pipelines.driver import Driver
from tieredstore.pipelines.entries import Entry, OutputFile, WrittenWindow
from tieredstore.pipelines.parts import Parts
from tieredstore.pipelines.runner import Runner
from tieredstore.pipelines.settings import Pipeline, PipelineSettings, load_pipeline, pipeline_from, with_generation

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
