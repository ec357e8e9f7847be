"""SequenceFiles as Secor writes them."""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping

from tieredstore.pipelines.files.sequencefile import LONG, SequenceFileWriter, bytes_writable


def sequence_file(records: Mapping[int, bytes]) -> bytes:
    """Return a file of values with their offsets as keys."""
    file = io.BytesIO()
    writer = SequenceFileWriter(file, LONG, "none", b"seed")
    for offset, value in records.items():
        writer.append(struct.pack(">q", offset), bytes_writable(value))
    writer.close()
    return file.getvalue()
