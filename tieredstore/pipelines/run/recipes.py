"""The recipe for a pipeline's files, the files' names, and a fingerprint of the settings that change files. All three
come from the pipeline's settings.
"""

from __future__ import annotations

import hashlib
import json
import logging
from datetime import date
from typing import Final

from tieredstore.config.fields import SettingsGroup
from tieredstore.errors import ConfigError
from tieredstore.limits import MAX_INT64
from tieredstore.pipelines.config.settings import CHAPTERS, Pipeline, PipelineSettings
from tieredstore.pipelines.filing.directories import java_format
from tieredstore.pipelines.filing.naming import ByDate, Naming, Places
from tieredstore.pipelines.format_table import FORMATS, format_of
from tieredstore.pipelines.parser_table import OffsetSettings, parser_of, partition_names
from tieredstore.pipelines.run.window_writing import InputLimits, Recipe
from tieredstore.pipelines.transforming import Transforming
from tieredstore.process.log_once import LogOnce

_log: Final = LogOnce(logging.getLogger(__name__))

_VERSION: Final = 2
"""Increment this number if a release writes different files for the same settings and records, for example by a new
default."""

_NOT_OF_FILES: Final = frozenset(
    {
        "max_file_age_s", "max_bad_messages", "local_path", "starting",
        "minute_mark", "minute_mark_filter", "upload_on_shutdown", "outage_s",
        "finalize", "finalizer_delay_s", "descriptor_set", "thrift_idl",
    }
)  # fmt: skip
"""Settings that change neither names nor bytes of an offset window's files. Paths of schema files are among them,
because only the contents (``schemas``) change files.
"""

_DECISIVE: Final = ("filing", "naming", "limits")
"""Groups of settings that change the names or bytes of an offset window's files."""


def _check_names(pipeline: Pipeline) -> None:
    """Raise ConfigError if a column of the files has the same name as a directory level such as ``dt=``. Readers would
    silently show only one of the two values.

    If the user has chosen the directory's name by ``secor.offsets.prefix``, this only logs a warning.
    """
    own = pipeline.own
    if own.columns != "none":
        decoder = format_of(own, pipeline.schemas)
        for table in (pipeline.schemas.ddl, pipeline.schemas.avro, pipeline.schemas.messages):
            for topic, _ in table:
                decoder.for_window(topic)
        return
    names = partition_names(own)
    for column in FORMATS[own.format].fields if own.format in FORMATS else ():
        setting = names.get(column.lower())
        if setting is None:
            continue
        words = f"{own.format} files have a column {column}, and a directory level has the same name: set {setting} to "
        if setting != "secor.offsets.prefix" or "offsets_prefix" not in own.of_parser(OffsetSettings).model_fields_set:
            raise ConfigError(f"{words}another name")
        _log.warn(f"{words}another name unless you need Secor's name: Spark and DuckDB read the directory's value")


def naming_of(pipeline: Pipeline) -> Naming:
    """Return the naming of a pipeline's files."""
    own = pipeline.own
    ending = own.extension or format_of(own).ending
    return Naming(places_of(pipeline), own.name, own.generation, ending, by_window=own.naming.name_offset == "window")


def places_of(pipeline: Pipeline) -> Places:
    """Return the directory layout of a pipeline's topics."""
    own, by_date = pipeline.own, None
    if own.naming.alternative_since:
        since, how = (
            date.fromisoformat(own.naming.alternative_since),
            java_format(own.filing.date_format, "date.format"),
        )
        by_date = ByDate(own.naming.alternative_root, since, own.filing.date_prefix, how)
    return Places(pipeline.output.key_prefix, own.naming.hashed, by_date)


def recipe_of(pipeline: Pipeline) -> Recipe:
    """Return everything that determines an offset window's files except its records."""
    _check_names(pipeline)
    own, naming, ends = pipeline.own, naming_of(pipeline), pipeline.own.limits
    # As in Secor, deterministic uploads use these two limits, and all other uploads use the limit of the file size.
    limits = InputLimits(ends.max_payload_bytes, ends.max_range_ms) if ends.is_deterministic else None
    file_bytes = MAX_INT64 if ends.is_deterministic else ends.max_file_bytes
    return Recipe(
        parser_of(own, pipeline.schemas), format_of(own, pipeline.schemas), naming,
        file_bytes, ends.max_file_records, own.local_path or None,
        Transforming(own.transformer) if own.transformer else None, limits, max(0, ends.max_open_files),
    )  # fmt: skip


def fingerprint_of(own: PipelineSettings) -> str:
    """Return a hash of all settings that change the names or bytes of an offset window's files.

    The hash leaves out settings with their default value. So a new setting in a later release changes no fingerprint.
    """
    groups: list[SettingsGroup] = [own, *(getattr(own, name) for name in _DECISIVE), *own.parsers]
    decisive = {
        name: value
        for group in groups
        for name, value in group
        if name not in {*CHAPTERS, "parsers"}
        and name not in _NOT_OF_FILES
        and value != type(group).model_fields[name].default
    }
    return hashlib.sha256(json.dumps([_VERSION, decisive], sort_keys=True).encode()).hexdigest()
