"""How a way changes a document: what stands in it is replaced as text, since a lie need not be a document any more."""

from __future__ import annotations

import re
from collections.abc import Callable

from tests.support.faulty_server.way import Exchange
from tests.support.faulty_server.wire import Answer


def rewritten(pattern: str, replacement: str, *, count: int = 0) -> Callable[[Exchange], Answer]:
    """The honest answer, its body with ``replacement`` for what matches ``pattern``."""
    compiled = re.compile(pattern.encode(), re.DOTALL)

    def answer(exchange: Exchange) -> Answer:
        reply = exchange.honest()
        return reply.changed(body=compiled.sub(replacement.encode(), reply.body, count=count))

    return answer
