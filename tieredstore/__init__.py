"""Tiered storage for Kafka's log, without the broker.

The public names are those of the rooms below; the usual ones to start from are
:class:`tieredstore.remote.RemoteStorageManager` and :func:`tieredstore.config.load_settings`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__: str

if not TYPE_CHECKING:  # to a type checker a name that is not there is not there

    def __getattr__(name: str) -> str:
        # Looked up when it is asked for: it takes as long as the rest of the package to import.
        if name == "__version__":
            from tieredstore.installation import version  # noqa: PLC0415

            return version()
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
