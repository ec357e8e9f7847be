"""The borders of a stored log: from its offset index, and from its batches where that has no entry for long."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from tieredstore.catalog.lineage import Span
from tieredstore.catalog.log_sections import offset_index_of
from tieredstore.errors import BatchCorrupt, IndexesCorrupt
from tieredstore.kafka.batches import HEADER_SIZE, BatchHeader, walk_batch_headers
from tieredstore.kafka.records.log_reading import OnCorrupt
from tieredstore.model import RemoteLogSegmentMetadata
from tieredstore.records.borders import IndexedEnds, Section, SectionEnd, SectionEnds, around, oversized

if TYPE_CHECKING:
    from tieredstore.remote.fetch.stream import SegmentStream
    from tieredstore.remote.source import SegmentSource

_PIECE_SIZE: Final = 64 * 1024
_SPACING: Final = 4096
"""As far apart as a broker's index entries: more borders would only take memory."""


def load_section_ends(
    source: SegmentSource,
    span: Span,
    max_bytes: int,
    *,
    on_corrupt: OnCorrupt,
) -> SectionEnds:
    """The borders of a segment's log; around the span's offsets none is missing that ``max_bytes`` asks for.

    Two requests at most for the index. Where two of its entries lie further than ``max_bytes`` apart, those for the
    chunks that hold the headers of the batches between them. IndexesCorrupt if index and log contradict each other;
    BatchCorrupt for headers that are none, unless damage is to be left out: there the log is not cut then.
    """
    borders = IndexedEnds(span.segment, offset_index_of(source, span.segment))
    walked: dict[int, SectionEnd] = {}
    for run in _runs(oversized(borders, *around(borders, span.start, span.stop), max_bytes)):
        for border in _walked(source, span.segment, run, min(_SPACING, max_bytes // 4), on_corrupt):
            # Two sections that meet both tell something of the border between them.
            known = walked.get(border.position, border)
            low, high = max(known.low, border.low), min(known.high, border.high)
            walked[border.position] = SectionEnd(border.position, low, high)
    # The usual case: the index stays as it is, and no border is made before it is asked for.
    if not walked:
        return borders
    of_index = (borders[number] for number in range(len(borders)))
    every = {border.position: border for border in of_index} | walked
    return [every[position] for position in sorted(every)]


def _runs(sections: Iterable[Section]) -> Iterator[list[Section]]:
    """The sections, those that meet together: each chunk is asked for once."""
    run: list[Section] = []
    for section in sections:
        if run and run[-1][1] != section[0]:
            yield run
            run = []
        run.append(section)
    if run:
        yield run


def _walked(
    source: SegmentSource,
    segment: RemoteLogSegmentMetadata,
    run: Sequence[Section],
    spacing: int,
    on_corrupt: OnCorrupt,
) -> list[SectionEnd]:
    """The borders of sections that meet, their ends included, with the offsets that the batches have."""
    borders: list[SectionEnd] = []
    start, stop = run[0][0].position, run[-1][1].position
    try:
        with source.fetch_log_segment(segment, start, stop - 1) as stream:
            window = _Headers(stream, start).window
            for begin, end in run:
                headers = walk_batch_headers(window, end.position, begin.position)
                borders += _between(segment, headers, (begin, end), spacing)
    except BatchCorrupt as error:
        if on_corrupt == "fail":
            raise BatchCorrupt(f"{segment}: {error}") from error
    return borders


def _between(
    segment: RemoteLogSegmentMetadata, headers: Iterator[BatchHeader], section: Section, spacing: int
) -> Iterator[SectionEnd]:
    begin, end = section
    next_offset, kept = begin.low, begin.position
    for header in headers:
        if header.position == begin.position:
            _expect(segment, begin, header.base_offset)
        # What is passed over stays together with what was kept before it, below the twofold.
        if header.position == begin.position or header.position - kept + header.size_in_bytes >= 2 * spacing:
            yield SectionEnd(header.position, next_offset, header.base_offset)
            kept = header.position
        next_offset = header.last_offset + 1
    _expect(segment, end, next_offset)
    yield SectionEnd(end.position, next_offset, end.high)


def _expect(segment: RemoteLogSegmentMetadata, border: SectionEnd, offset: int) -> None:
    if not border.low <= offset <= border.high:
        raise IndexesCorrupt(
            f"the offset index of {segment} leads to byte {border.position} for the offsets {border.low} to "
            f"{border.high}, and the record batches have offset {offset} there"
        )


class _Headers:
    """A log seen header by header. Chunks that lie wholly inside of a batch are passed over."""

    def __init__(self, stream: SegmentStream, begin: int) -> None:
        self._stream = stream
        self._begin = begin
        self._start = begin
        self._piece = b""

    def window(self, position: int) -> memoryview:
        """The bytes from ``position`` on: a header's at least, unless the log ends before."""
        end = self._start + len(self._piece)
        if position + HEADER_SIZE > end:
            kept = self._piece[position - self._start :]
            # Seeking lets whole chunks between two headers go unread.
            if position > end:
                self._stream.seek(position - self._begin)
            self._start, self._piece = position, kept + self._stream.read(_PIECE_SIZE)
        return memoryview(self._piece)[position - self._start :]
