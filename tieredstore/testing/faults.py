"""The name under which tests import :class:`FaultyStore` until their imports are rewritten."""

from tieredstore.testing.doubles import FaultyStore, Moment

__all__ = ["FaultyStore", "Moment"]
