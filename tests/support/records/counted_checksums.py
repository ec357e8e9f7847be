"""Counter of the bytes that are read for the checksums of batches."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

from tieredstore.pubsub.format import messages
from tieredstore.pubsub.produce import batch_writer as writer


@contextmanager
def counted_checksums(*, copies: bool = True) -> Generator[list[int]]:
    """Collect the sizes of reads for checksums. Unless ``copies``, fail if a batch's parts are joined by copying."""
    read: list[int] = []
    untyped: Any = messages
    crc32 = untyped.crc32

    def counting(data: Any, *before: int) -> int:
        read.append(len(data))
        return int(crc32(data, *before))

    def copying(*_: object) -> None:
        raise AssertionError("a batch was copied together")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(messages, "crc32", counting)
        if not copies:
            patch.setattr(writer, "fill_batch", copying)
        yield read
