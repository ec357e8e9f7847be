"""Ten thousand damaged logs, and as many batches of MemQ's, against kernels built with AddressSanitizer; run by
``tests/asan/run``."""

from __future__ import annotations

import random
import sys
from pathlib import Path

from tests.support import memq_batches
from tests.support.record_batches import random_log, rows
from tests.support.record_mutations import check, mutations, run_over
from tieredstore.kafka import _runs
from tieredstore.kafka.records import _kernel
from tieredstore.pubsub.format import _reading, _writing


def main(folder: Path, count: int) -> int:
    """Returns 0; a bad access ends the process before that, with a report."""
    for kernel in (_kernel, _runs, _reading, _writing):
        built = Path(kernel.__file__ or "").resolve()
        if not built.is_relative_to(folder.resolve()):
            sys.exit(f"{built} is not the kernel of {folder}")
    if "libasan" not in Path("/proc/self/maps").read_text():
        sys.exit("the sanitizer is not loaded")
    source = random.Random(0)
    survived = sum(check(mutation, source) for mutation in mutations(2, count))
    walked = sum(run_over(mutation.damaged, source) for mutation in mutations(3, count))
    print(f"{count} mutations, {walked} bytes of ordinary batches in them: no bad access")
    for seed in range(count // 50):
        log = b"".join(random_log(random.Random(seed), 10))
        if rows(log) != rows([log[at : at + 97] for at in range(0, len(log), 97)], target_bytes=500):
            sys.exit(f"log {seed} decodes to other records in pieces")
    print(f"{count} mutations, {survived} of them readable: no bad access")
    survived = sum(memq_batches.check(mutation, source) for mutation in memq_batches.mutations(2, count))
    print(f"{count} mutations of MemQ's batches, {survived} of them readable: no bad access")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
