"""The error to raise if some keys of a ``delete`` could not be deleted."""

from __future__ import annotations

from collections.abc import Sequence

from tieredstore.errors import TieredStoreError


def raise_failures(failures: Sequence[TieredStoreError]) -> None:
    """Raise one of ``failures``, with the number of failures in its message. Return if there are no failures.

    Raise a retryable error only if all are retryable: otherwise a retry cannot delete everything.
    """
    if not failures:
        return
    chosen = next((failure for failure in failures if not failure.retryable), failures[0])
    count = "1 object" if len(failures) == 1 else f"{len(failures)} objects"
    raise type(chosen)(f"{count} could not be deleted: {chosen}") from chosen
