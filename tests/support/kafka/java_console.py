"""Java's console consumer, from the jars of the tests' broker."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from tests.support.kafka.kafka_topics import Row
from tests.support.servers.kafka import KafkaServer, java_command
from tieredstore.model import Isolation

_NULL: Final = "<null>"
_BYTES: Final = "org.apache.kafka.common.serialization.BytesDeserializer"
_KINDS: Final = ("CreateTime", "LogAppendTime")
"""Words that begin a record's line, as opposed to log lines in the same stream."""
_TIMEOUT_S: Final = 120
_IDLE_MS: Final = 10_000
"""Milliseconds that the consumer waits for further records before it ends."""


def console_lines(server: KafkaServer, topic: str, folder: Path, *, isolation: Isolation) -> list[str]:
    """Return the console consumer's output for all records of partition 0, a line per record."""
    shown = {
        "print.timestamp": "true", "print.offset": "true", "print.headers": "true", "print.key": "true",
        "key.deserializer": _BYTES, "value.deserializer": _BYTES, "headers.deserializer": _BYTES,
        "null.literal": _NULL,
    }  # fmt: skip
    arguments = [
        "--bootstrap-server", server.bootstrap_servers, "--topic", topic, "--partition", "0", "--offset", "earliest",
        "--isolation-level", isolation, "--timeout-ms", str(_IDLE_MS),
        *(word for name, text in shown.items() for word in ("--property", f"{name}={text}")),
    ]  # fmt: skip
    command = [*java_command(folder, 'exec "$@"'), "org.apache.kafka.tools.consumer.ConsoleConsumer", *arguments]
    done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False)
    # The consumer always ends by a timeout, which it reports and logs as an error.
    assert b"TimeoutException" in done.stderr or done.returncode == 0, done.stderr.decode()[-2000:]
    return [line for line in done.stdout.decode().splitlines() if line.startswith(_KINDS)]


def console_line(row: Row) -> str:
    """Return the line that the console consumer prints for a record."""
    kind = _KINDS[int(row["timestampType"])]
    headers = ",".join(f"{header['key']}:{_shown(header['value'])}" for header in row["headers"] or ())
    shown = (f"{kind}:{row['timestamp']}", f"Offset:{row['offset']}", headers or "NO_HEADERS")
    return "\t".join((*shown, _shown(row["key"]), _shown(row["value"])))


def _shown(data: bytes | None) -> str:
    """Format bytes like Java's class Bytes."""
    if data is None:
        return _NULL
    return "".join(chr(one) if 0x20 <= one <= 0x7E and one != 0x5C else f"\\x{one:02X}" for one in data)
