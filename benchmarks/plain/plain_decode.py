"""A plain C loop over uncompressed batches, with which any machine with a compiler can compare the decoder."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

_SOURCE = Path(__file__).with_suffix(".c")
_BYTES = ("keys", "values")
_NARROW = ("key_ends", "value_ends", "header_ends", "types", "epochs")
_WIDE = ("offsets", "timestamps")


class _Columns(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in (*_BYTES, *_NARROW, *_WIDE)]


def plain_decoder(piece: bytes, count: int) -> Callable[[], int] | None:
    """Return a job that decodes ``piece`` of ``count`` records into its own memory; None without a C compiler."""
    if shutil.which("cc") is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "plain_decode.so")
        subprocess.run(["cc", "-O3", "-shared", "-fPIC", str(_SOURCE), "-o", str(library)], check=True, timeout=300)
        loop = ctypes.CDLL(str(library)).plain_decode
    loop.argtypes, loop.restype = (ctypes.c_char_p, ctypes.c_int64, ctypes.POINTER(_Columns)), ctypes.c_int64
    sizes = [len(piece)] * len(_BYTES) + [4 * count] * len(_NARROW) + [8 * count] * len(_WIDE)
    memory = [ctypes.create_string_buffer(size) for size in sizes]
    columns = _Columns(*(ctypes.addressof(part) for part in memory))

    def decode() -> int:
        rows = int(loop(piece, len(piece), ctypes.byref(columns)))
        # refer to the memory, so that it lives as long as the job
        return rows if memory else 0

    return decode
