"""Files out of a bucket: they appear when they are whole."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from tieredstore.errors import ConfigError

if TYPE_CHECKING:
    from tieredstore.api.rows import Segment

_PIECE: Final = 1 << 20


@contextlib.contextmanager
def whole_file(path: Path) -> Generator[BinaryIO]:
    """A new file that is there under its name once the block ends well, and not at all otherwise."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with draft.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def fetch_file(segment: Segment, path: Path, span: slice | None, index: str | None) -> Path:
    """The log of a segment, a span of its bytes as a slice has them, or an index, in a new file."""
    if index is not None and span is not None:
        raise ConfigError("range and index exclude each other: an index comes whole")
    if index is not None:
        with segment.index(index) as source, whole_file(path) as file:
            shutil.copyfileobj(source, file, _PIECE)
        return path
    with segment.open() as log:
        start, stop, step = (slice(None) if span is None else span).indices(segment.size or 0)
        if step != 1:
            raise ConfigError("range has a step: give slice(start, stop)")
        with whole_file(path) as file:
            log.seek(start)
            left = max(0, stop - start)
            while left:
                piece = log.read(min(left, _PIECE))
                file.write(piece)
                left -= len(piece)
    return path
