"""A process beside a broker that uploads closed segments into the object store, in order and without loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tieredstore.uploader.broker import BrokerEnvironment
    from tieredstore.uploader.leadership import Leadership
    from tieredstore.uploader.uploader import Uploader

__all__ = ["BrokerEnvironment", "Leadership", "Uploader"]


def __getattr__(name: str) -> object:
    # Import these modules on first use: `tieredstore --help` imports this package only for its table of commands.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tieredstore.uploader import broker, leadership, uploader  # noqa: PLC0415

    return next(getattr(module, name) for module in (broker, leadership, uploader) if name in vars(module))
