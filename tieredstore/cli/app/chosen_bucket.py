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
    if store_url is not None:
        from tieredstore.backends.registry import settings_at

        return settings_at(_url(store_url), settings_path)
    if settings_path is None:
        raise ConfigError("no store is named: give --settings FILE (-c) or --store URL")
    from tieredstore.config import load_settings

    return load_settings(settings_path)


def _url(text: str) -> str:
    """What --store says; a path that begins as one (``./store``, ``../store``, ``~/store``) becomes absolute."""
    return str(Path(text).expanduser().absolute()) if text.partition("/")[0] in {".", "..", "~"} else text


@contextlib.contextmanager
def open_chosen_bucket(settings_path: Path | None, store_url: str | None = None) -> Generator[Bucket]:
    """The bucket that a settings file or a URL names, closed again at the end."""
    from tieredstore.ops.bucket import open_bucket

    with open_bucket(choose_settings(settings_path, store_url)) as bucket:
        yield bucket
