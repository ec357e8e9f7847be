"""The catalog file: what earlier plannings read, so that the next one reads only what is new."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tieredstore.backends.base import ObjectStore
from tieredstore.catalog.arrow_rows import Origin, StoredRows, decode_rows
from tieredstore.catalog.rows import SegmentRow
from tieredstore.errors import ObjectNotFound, PreconditionFailed

_logger: Final = logging.getLogger(__name__)

_KEY: Final = "!tieredstore/catalog.arrows"
_MAX_SIZE: Final = 2**30  # over four million segments; an object of more bytes is not fetched
_ATTEMPTS: Final = 8


@dataclass(frozen=True, slots=True)
class CatalogFile:
    """An object that keeps a catalog's rows: in the store that it is of, or in any other, such as a local folder.

    A cache and no more: it is believed only of manifests whose listed etag (or size and time) is the one it was made
    from, and one that is damaged, of another version or of other objects is rebuilt. Several planners may share it.
    """

    store: ObjectStore
    key: str

    @classmethod
    def beside(cls, store: ObjectStore, prefix: str) -> CatalogFile:
        """The usual place in the store itself: no topic's name holds a ``!``, so no topic's listing has this key."""
        return cls(store, prefix + _KEY)

    def load(self, origin: Origin) -> LoadedRows:
        """The file's rows, none if there is no file of this origin; two requests, one if there is none at all."""
        try:
            # The etag goes first: if the file is replaced in between, saving over it finds out.
            info = self.store.head(self.key)
            raw = self.store.get(self.key) if info.size <= _MAX_SIZE else b""
        except ObjectNotFound:
            return LoadedRows(StoredRows(), None)
        rows = decode_rows(raw, origin)
        if rows is None:
            _logger.warning(
                "the catalog file %s is damaged, or not of this version or store: it is made anew", _name(self.key)
            )
        return LoadedRows(rows or StoredRows(), info.etag)

    def save(self, loaded: LoadedRows, origin: Origin, rows: Iterable[SegmentRow], gone: set[str]) -> bool:
        """Put ``rows`` over those that the file has, and take out the paths in ``gone``; whether that was done.

        Conditional on the file being the one that was loaded: if another planner was faster, its file is loaded and
        merged with. After some lost races this gives up, as the rows can be read again.
        """
        fresh = list(rows)
        for _ in range(_ATTEMPTS):
            body = loaded.rows.merged(fresh, gone, origin)
            try:
                if loaded.etag is None:
                    self.store.put(self.key, body, if_absent=True)
                else:
                    self.store.replace(self.key, body, loaded.etag)
            # Somebody else was faster. Their rows are as good as ours: both are merged, and it is tried again.
            except PreconditionFailed:
                loaded = self.load(origin)
            else:
                return True
        _logger.warning("the catalog file %s was replaced again and again: it is left as it is", _name(self.key))
        return False


@dataclass(frozen=True, slots=True)
class LoadedRows:
    """A catalog file's rows and its etag; None where there is no file."""

    rows: StoredRows
    etag: str | None


def _name(key: str) -> str:
    """The key without what may be a prefix that has to stay out of logs."""
    return key.rpartition("/")[2]
