"""Pipelines: write each record of a topic to files exactly once, in directories by offset, date or field."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tieredstore.installation import Extra

if TYPE_CHECKING:
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
    from tieredstore.pipelines.run.runner import Runner
    from tieredstore.pipelines.run.source import Parts

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


def __getattr__(name: str) -> object:
    # Import these modules on first use, because every `tieredstore --help` imports this package but needs none of them.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with Extra("a pipeline", "kafka"):
        from tieredstore.pipelines.config import settings  # noqa: PLC0415
        from tieredstore.pipelines.log import commit_log, entries  # noqa: PLC0415
        from tieredstore.pipelines.run import driver, runner, source  # noqa: PLC0415

    modules = (commit_log, driver, entries, runner, settings, source)
    return next(getattr(module, name) for module in modules if name in vars(module))
