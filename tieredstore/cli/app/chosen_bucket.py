"""The bucket that a command's options name."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

from tieredstore.errors import ConfigError

if TYPE_CHECKING:
    from tieredstore.config import Settings
    from tieredstore.ops.bucket import Bucket


def choose_settings(settings_path: Path | None, store_url: str | None) -> Settings:
    """The settings of a file, of a URL, or of a file for the store of a URL; ConfigError without both."""
    if settings_path is None and store_url is None:
        raise ConfigError("no store is named: give --settings FILE (-c) or --store URL")
    from tieredstore.remote.stores import settings_of

    return settings_of(settings_path, store=store_url)


@contextlib.contextmanager
def open_chosen_bucket(settings_path: Path | None, store_url: str | None = None) -> Generator[Bucket]:
    """The bucket that a settings file or a URL names, closed again at the end."""
    from tieredstore.ops.bucket import open_bucket

    with open_bucket(choose_settings(settings_path, store_url)) as bucket:
        yield bucket
