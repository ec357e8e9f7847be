"""The name under which tests import :class:`DelegatingObjectStore` until their imports are rewritten."""

from tieredstore.testing.doubles import DelegatingObjectStore, Operation, OperationName

__all__ = ["DelegatingObjectStore", "Operation", "OperationName"]
