"""Kernels built with AddressSanitizer read ten thousand damaged logs, damaged MemQ batches and changing files each; run
by ``tests/asan/run``.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from tests.support.damage.compressed_bodies import check_body, damaged_bodies
from tests.support.damage.damaged_packets import damaged_packet
from tests.support.damage.record_mutations import check, mutations, run_over, scan_over
from tests.support.pubsub import memq_batches
from tests.support.records import json_texts
from tests.support.records.record_batches import random_log, rows
from tests.support.stores.changing_files import ChangingFiles
from tieredstore.backends.filesystem import _files
from tieredstore.kafka import _header_walk, _runs
from tieredstore.kafka.records import _checks, _kernel
from tieredstore.pipelines.filing import _json_scan
from tieredstore.pubsub.errors import PacketCorruptError
from tieredstore.pubsub.format import _packets, _reading, _writing
from tieredstore.pubsub.format.packets import VERSIONS, Request, WriteRequest, request_bytes, view_request
from tieredstore.remote.diskcache import _value_files


def main(folder: Path, count: int) -> int:
    """Return 0; AddressSanitizer ends the process earlier, with a report, at a bad access."""
    for kernel in (
        _kernel,
        _checks,
        _runs,
        _header_walk,
        _packets,
        _reading,
        _writing,
        _files,
        _value_files,
        _json_scan,
    ):
        built = Path(kernel.__file__ or "").resolve()
        if not built.is_relative_to(folder.resolve()):
            sys.exit(f"{built} is not the kernel of {folder}")
    if "libasan" not in Path("/proc/self/maps").read_text():
        sys.exit("the sanitizer is not loaded")
    source = random.Random(0)
    survived = sum(check(mutation, source) for mutation in mutations(2, count))
    walked = sum(run_over(mutation.damaged, source) for mutation in mutations(3, count))
    print(f"{count} mutations, {walked} bytes of ordinary batches walked: no bad access")
    scanned = sum(scan_over(mutation.damaged, source) for mutation in mutations(4, count))
    print(f"{count} mutations, {scanned} of them scanned without an error: no bad access")
    read = sum(check_body(body) for body in damaged_bodies(2, count))
    print(f"{count} compressed bodies with damage, {read} of them read, with the library's result: no bad access")
    for seed in range(count // 50):
        log = b"".join(random_log(random.Random(seed), 10))
        if rows(log) != rows([log[at : at + 97] for at in range(0, len(log), 97)], target_bytes=500):
            sys.exit(f"log {seed} decodes to other records in pieces")
    print(f"{count} mutations, {survived} of them readable: no bad access")
    survived = sum(memq_batches.check(mutation, source) for mutation in memq_batches.mutations(2, count))
    print(f"{count} mutations of MemQ's batches, {survived} of them readable: no bad access")
    survived = sum(map(is_taken, damaged_writes(2, count)))
    print(f"{count} mutations of requests that write, {survived} of them accepted: no bad access")
    laid = sum(laid_records(random.Random(seed)) for seed in range(count // 50))
    print(f"{laid} records written into given memory: no bad access")
    # Each text is in a buffer of exactly its size, so that reading past its end is an error.
    answered = sum(json_texts.said([text])[0] is not None for text in json_texts.texts(2, count))
    print(f"{count} texts of JSON, {answered} of them answered by the fast path: no bad access")
    print(f"{count} changes of files, {visit_while_they_change(count)} read meanwhile: no bad access")
    print(f"{values_read(count // 10)} values of files read: no bad access")
    return 0


def values_read(count: int) -> int:
    """Return the number of values read, each into a buffer of its size, from a file with too many or too few bytes."""
    source = random.Random(2)
    with tempfile.TemporaryFile() as file:
        for _ in range(count):
            size, start = (
                source.choice((0, 1, 255, 131_071, 131_072, 131_073, 400_000)),
                source.choice((0, 1, 52, 500_000)),
            )
            file.truncate(source.choice((0, 52, 300, 300_000, 900_000)))
            there, _ = _value_files.read_checked(file.fileno(), start, bytearray(size), 0)
            if there != max(0, min(size, os.fstat(file.fileno()).st_size - start)):
                sys.exit(f"{there} bytes were read where {size} were asked for")
    return count


def damaged_writes(seed: int, count: int) -> Iterator[bytes]:
    """Yield damaged requests of all versions that carry a Message."""
    source = random.Random(seed)
    write = WriteRequest("orders", 7, b"a payload of some bytes", False, "a-producer", (("10.0.0.1", 3), ("ü", 0)))
    originals = [request_bytes(Request(version, 42, write)) for version in VERSIONS]
    for _ in range(count):
        yield damaged_packet(source, source.choice(originals), framed=0.9)


def is_taken(packet: bytes) -> bool:
    """Return True if a broker accepts the packet as a request."""
    try:
        view_request(memoryview(packet))
    except PacketCorruptError:
        return False
    return True


def laid_records(source: random.Random) -> int:
    """Return the number of records written into a buffer of random size before it is full."""
    head, most = source.choice((19, 40, 52)), source.randrange(1, 3000)
    body = _writing.BodyWriter(most, memoryview(bytearray(head + most)), head)
    while body.take(*memq_batches.random_record(source)[:4], None, 1 << 40) >= 0:
        pass
    body.add_header(bytes(head))
    return body.count


def visit_while_they_change(count: int) -> int:
    """Return the number of files that one thread has read while another thread changed them."""
    with tempfile.TemporaryDirectory() as folder:
        files, visited = ChangingFiles(Path(folder), 2), 0

        def change() -> None:
            for _ in range(count):
                files.change()

        changing = threading.Thread(target=change)
        changing.start()
        while changing.is_alive():
            visited += files.visit()
        files.check_settled()
        return visited


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
