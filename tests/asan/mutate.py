"""Ten thousand damaged logs, and as many batches of MemQ's, manifests and changes of files, against kernels built with
AddressSanitizer; run by ``tests/asan/run``."""

from __future__ import annotations

import random
import sys
import tempfile
import threading
from pathlib import Path

from tests.support import json_texts, memq_batches
from tests.support.changing_files import ChangingFiles
from tests.support.manifest_mutations import KNOWN_SEGMENT, damaged_manifests, read_both_ways
from tests.support.record_batches import random_log, rows
from tests.support.record_mutations import check, mutations, run_over, scan_over
from tieredstore.backends.filesystem import _files
from tieredstore.format import _written
from tieredstore.kafka import _header_walk, _runs
from tieredstore.kafka.records import _kernel
from tieredstore.pipelines import _json_scan
from tieredstore.pubsub.format import _reading, _writing


def main(folder: Path, count: int) -> int:
    """Returns 0; a bad access ends the process before that, with a report."""
    for kernel in (_kernel, _runs, _header_walk, _reading, _writing, _written, _files, _json_scan):
        built = Path(kernel.__file__ or "").resolve()
        if not built.is_relative_to(folder.resolve()):
            sys.exit(f"{built} is not the kernel of {folder}")
    if "libasan" not in Path("/proc/self/maps").read_text():
        sys.exit("the sanitizer is not loaded")
    source = random.Random(0)
    survived = sum(check(mutation, source) for mutation in mutations(2, count))
    walked = sum(run_over(mutation.damaged, source) for mutation in mutations(3, count))
    print(f"{count} mutations, {walked} bytes of ordinary batches in them: no bad access")
    scanned = sum(scan_over(mutation.damaged, source) for mutation in mutations(4, count))
    print(f"{count} mutations, {scanned} of them scanned without an error: no bad access")
    for seed in range(count // 50):
        log = b"".join(random_log(random.Random(seed), 10))
        if rows(log) != rows([log[at : at + 97] for at in range(0, len(log), 97)], target_bytes=500):
            sys.exit(f"log {seed} decodes to other records in pieces")
    print(f"{count} mutations, {survived} of them readable: no bad access")
    survived = sum(memq_batches.check(mutation, source) for mutation in memq_batches.mutations(2, count))
    print(f"{count} mutations of MemQ's batches, {survived} of them readable: no bad access")
    survived = sum(read_both_ways(raw, KNOWN_SEGMENT) is not None for raw in damaged_manifests(2, count))
    print(f"{count} mutations of manifests, {survived} of them readable: no bad access")
    # Each value in a buffer of its own size, behind whose end nothing may be read.
    answered = sum(json_texts.said([text])[0] is not None for text in json_texts.texts(2, count))
    print(f"{count} texts of JSON, {answered} of them told at once: no bad access")
    print(f"{count} changes of files, {visit_while_they_change(count)} read meanwhile: no bad access")
    return 0


def visit_while_they_change(count: int) -> int:
    """How many of the files were read, by a thread that visits them while another one changes them."""
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
