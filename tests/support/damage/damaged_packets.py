"""MemQ protocol packets as a damaged or hostile client sends them."""

from __future__ import annotations

import random


def damaged_packet(source: random.Random, original: bytes, *, first: int = 0, framed: float) -> bytes:
    """Return the packet with a few bytes flipped, replaced, removed or inserted, from the byte ``first`` on.

    With the probability ``framed``, the frame gives the size of the damaged packet.
    """
    packet = bytearray(original)
    for _ in range(source.choice((1, 1, 2, 5))):
        at = source.randrange(first, len(packet))
        match source.randrange(4):
            case 0:
                packet[at] ^= 1 << source.randrange(8)
            case 1:
                packet[at] = source.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 2 if len(packet) > 20:
                del packet[at : at + source.randrange(1, 5)]
            case _:
                packet[at:at] = source.randbytes(source.randrange(1, 5))
    if source.random() < framed:
        packet[:4] = (len(packet) - 4).to_bytes(4, "big")
    return bytes(packet)
