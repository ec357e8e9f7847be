"""A process beside a broker that uploads closed segments into the object store, in order and without loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tieredstore.uploader.broker import BrokerEnvironment
    from tieredstore.uploader.leadership import Leadership
    from tieredstore.uploader.uploader import Uploader

__all__ = ["BrokerEnvironment", "Leadership", "Uploader"]


def __getattr__(name: str) -> object:
    # Import each module on first use: `tieredstore --help` imports this package only for its table of commands.
    match name:
        case "BrokerEnvironment":
            from tieredstore.uploader import broker  # noqa: PLC0415

            return broker.BrokerEnvironment
        case "Leadership":
            from tieredstore.uploader import leadership  # noqa: PLC0415

            return leadership.Leadership
        case "Uploader":
            from tieredstore.uploader import uploader  # noqa: PLC0415

            return uploader.Uploader
        case _:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
