"""Group member in a process that may be killed: python -m tests.support.kafka.group_member CONFIG OUTPUT.

The member writes to OUTPUT, without buffering, a line for each assignment, received offset, and commit that the
coordinator has confirmed. SIGTERM makes it leave the group.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tests.support.records.topic_buckets import value_of
from tieredstore.consumer import Consumer


def main() -> None:
    """Run as a member until SIGTERM."""
    properties = json.loads(Path(sys.argv[1]).read_text())
    topic = properties.pop("topic")
    leaves = threading.Event()

    def leave(signum: int, frame: object) -> None:
        leaves.set()

    signal.signal(signal.SIGTERM, leave)
    output = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(kind: str, rows: list[tuple[int, int]]) -> None:
        now = time.monotonic_ns()
        os.write(output, b"".join(f"{kind} {partition} {offset} {now}\n".encode() for partition, offset in rows))

    def on_commit(error: Any, places: list[Any]) -> None:
        if error is None:
            note("committed", [(one.partition, one.offset) for one in places if one.error is None and one.offset >= 0])

    def on_assign(_: Any, places: list[Any]) -> None:
        note("assigned", [(one.partition, 0) for one in places])

    with Consumer({**properties, "on_commit": on_commit}) as consumer:
        consumer.subscribe([topic], on_assign=on_assign)
        while not leaves.is_set():
            messages = [one for one in consumer.consume(20, 0.05) if one.error() is None]
            for one in messages:
                assert one.value() == value_of(topic, one.partition(), one.offset())
            note("given", [(one.partition(), one.offset()) for one in messages])
            time.sleep(0.02)


if __name__ == "__main__":
    main()
