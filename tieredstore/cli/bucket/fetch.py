"""``tieredstore fetch``: a segment's bytes, or one of its indexes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, BinaryIO, Final

import typer

from tieredstore.api.rows import index_type
from tieredstore.cli.app.options import Address, Store, ToFile
from tieredstore.cli.bucket.decoded_indexes import IndexName
from tieredstore.cli.terminal.output_file import output_to, refuse_binary
from tieredstore.cli.terminal.progress import progress
from tieredstore.errors import ConfigError

_RANGE: Final = re.compile(r"([+-]?\d{1,40})?:([+-]?\d{1,40})?", re.ASCII)


def fetch(
    address: Address,
    store: Store,
    index: IndexName = None,
    byte_range: Annotated[
        str | None,
        typer.Option("--range", metavar="A:B", help="Bytes A to B (exclusive) of the log, as in a Python slice."),
    ] = None,
    output: ToFile = None,
) -> None:
    """Fetch a segment's log, a range of its bytes, or an index, exactly as the broker wrote them.

    Either bound of --range A:B may be left out. A negative bound counts from the end of the log; a bound beyond the end
    means the end. The exit code is 3 if the segment was stored without the requested index.

    Example: tieredstore fetch -c store.properties orders 0 0 --range=-1000: -o tail.log
    """
    if index is not None and byte_range is not None:
        raise ConfigError("--index and --range exclude each other: an index is always fetched whole")
    kind = None if index is None else index_type("--index", index)
    bounds = parse_range(byte_range or ":")
    refuse_binary(output)
    target = output_to(output)
    with store.open() as bucket:
        segment = bucket.inspect(address.topic, address.partition, address.segment, topic_id=address.life)
        if kind is not None:
            with segment.index(kind.value) as stream:
                content = stream.read()
            with target as file:
                file.write(content)
            return
        start, stop, _ = bounds.indices(segment.size or 0)
        assert segment.stored is not None  # ``inspect`` always sets ``stored``
        with target as file:
            if start < stop:  # an empty range needs no data, so do not read key files
                with bucket.manager.fetch_log_segment(segment.stored.metadata, start, stop - 1) as stream:
                    _copy(stream.chunks(), stop - start, file)


def parse_range(text: str) -> slice:
    """Parse ``A:B`` as a slice. Raise ConfigError for anything else."""
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"--range {text!r} is not a range of bytes: give A:B as in a Python slice (100:, :-1, 5:9)")
    return slice(*(None if bound is None else int(bound) for bound in match.groups()))


def _copy(chunks: Iterator[memoryview], size: int, file: BinaryIO) -> None:
    with progress("fetch", size) as advance:
        for chunk in chunks:
            file.write(chunk)
            advance(len(chunk))
