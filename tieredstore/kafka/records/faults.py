"""The sentences for what the kernel finds wrong with a batch."""

from __future__ import annotations

from typing import Final

# By the kernel's numbers of its faults, whose two operands are put in; 0 is no fault.
_SENTENCES: Final = (
    "",
    "has the impossible length {0}",
    "has the unknown magic {0}",
    "has {0} bytes, and max_batch_bytes allows {1}",
    "has {0} bytes, fewer than its header",
    "has offsets {0} + {1}",
    "has {0} records for {1} offsets",
    "has the unknown compression type {0}",
    "begins at offset {0}, not after offset {1} of the batch before it",
    "is damaged: its CRC is {0:08x}, and {1:08x} was written",
    "has {0} records in only {1} bytes",
    "has a record, number {0} of {1}, that does not agree with its size",
    "has a record, number {0}, whose offset delta {1} is not between its neighbours' or outside of the batch",
    "has a record, number {0} of {1}, with malformed headers",
    "has {0} bytes left after its {1} records",
    "is a message whose parts do not agree with its {0} bytes",
    "has an inner message, number {0}, that is malformed, compressed, or not of magic {1}",
    "has an inner message, number {0}, that is damaged: its CRC does not hold",
    "is a compressed message set without messages",
    "has inner messages at offset {0}, outside of the place that its own offset {1} gives them",
    "begins at offset {0}, and its log ends before offset {1}",
    "has {0} headers or more, and max_batch_bytes leaves room for {1}",
)

# Length, magic, more bytes than allowed: of these the batch's end is not known.
_LAST_FRAMING_FAULT: Final = 3


def sentence(fault: tuple[int, int, int]) -> str:
    """What is wrong, to follow "the record batch at byte ..."."""
    kind, first, second = fault
    return _SENTENCES[kind].format(first, second)


def hides_next_batch(fault: tuple[int, int, int]) -> bool:
    """True where the batch's own frame is damaged, so that nothing says where the next batch begins."""
    return 0 < fault[0] <= _LAST_FRAMING_FAULT
