"""File system events of the log folders. They save waiting for the next scan; nothing depends on them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tieredstore.installation import install_command

if TYPE_CHECKING:
    from watchdog.observers.api import ObservedWatch

_logger: Final = logging.getLogger(__name__)

_EVENTS: Final = ("FileCreatedEvent", "FileMovedEvent", "FileDeletedEvent")


class _Handler:
    """Report any event by its folder; the next listing finds the file. watchdog calls `dispatch`."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change

    def dispatch(self, _: object) -> None:
        self._on_change()


class FolderWatch:
    """Call ``on_change`` with the folder in which a file was created, deleted or renamed; appends cost nothing.

    A lost event, a full table of watches or a network disk only cost time: this is logged once.
    """

    def __init__(self, on_change: Callable[[Path], None]) -> None:
        self._on_change = on_change
        self._watches: dict[Path, ObservedWatch] = {}
        self._is_broken = False
        self._observer: Any = None
        self._events: Any = None
        try:
            from watchdog import events  # noqa: PLC0415  an extra's, and of no use to a run of --once
            from watchdog.observers import Observer  # noqa: PLC0415
        except ImportError:
            self._give_up(f"the package watchdog is not installed ({install_command('uploader')})")
            return
        self._events = events
        try:
            self._observer = Observer()
            self._observer.start()
        except OSError as error:
            self._give_up(str(error))

    def watch(self, folders: Iterable[Path]) -> bool:
        """Watch exactly these folders. Return whether one is new: something may have happened in it before."""
        if self._is_broken:
            return False
        wanted = set(folders)
        for folder in self._watches.keys() - wanted:
            with contextlib.suppress(Exception):  # a folder that is gone has taken its watch along
                self._observer.unschedule(self._watches[folder])
            del self._watches[folder]
        before = len(self._watches)
        for folder in wanted - self._watches.keys():
            try:
                self._watches[folder] = self._add(folder)
            except FileNotFoundError:
                continue
            except OSError as error:
                self._give_up(f"{folder} cannot be watched: {error.strerror}")
                return False
        return len(self._watches) > before

    def close(self) -> None:
        """Stop watching."""
        observer, self._observer = self._observer, None
        if observer is not None:
            observer.stop()
            observer.join(2.0)

    def _add(self, folder: Path) -> ObservedWatch:
        kinds = [getattr(self._events, name) for name in _EVENTS]
        watch: ObservedWatch = self._observer.schedule(
            _Handler(partial(self._on_change, folder)), str(folder), event_filter=kinds
        )
        return watch

    def _give_up(self, reason: str) -> None:
        self._is_broken = True
        _logger.warning(
            "folders are only looked at each uploader.scan.interval.ms, since the system does not tell of changes: %s",
            reason,
        )
        self.close()
