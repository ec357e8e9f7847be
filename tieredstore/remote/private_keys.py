"""Private keys from a file, a variable or a descriptor: plain, protected by a passphrase, or sealed by a key service.

A key's bytes stay in this process, and no message shows them.
"""

from __future__ import annotations

import os
import select
import stat
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tieredstore.errors import KeyRingError
from tieredstore.process.deadline import Deadline
from tieredstore.transform.keyring import KeyPair
from tieredstore.transform.pem import MAX_BYTES, first_block, key_file_content, private_key, read_public_key, unprotect

if TYPE_CHECKING:
    from tieredstore.config.encryption import KeyPairSettings

_PIPE_TIMEOUT_S: Final = 30.0
_lock: Final = threading.Lock()
_from_pipes: Final[dict[tuple[int, int, int], bytes]] = {}
"""Texts that were read from pipes, by descriptor, device and inode. A pipe gives its text only once, but settings may
be loaded several times.
"""


def open_pair(pair: KeyPairSettings) -> tuple[KeyPair, bytes]:
    """Open the key pair that the settings describe. Return the pair and its private key (PKCS#8, DER). A passphrase is
    read only once, and a key service is called only once.

    Raise KeyRingError or KeyServiceError as ``key_ring_of`` does.
    """
    name, public = _name(pair), read_public_key(pair.public_key_file)
    der = _private_key_der(pair)
    return KeyPair.of(public, private_key(der, name), name, str(pair.public_key_file)), der


def _private_key_der(pair: KeyPairSettings) -> bytes:
    name, text = _name(pair), _text(pair)
    if pair.kms is not None and pair.kms_key is not None:
        from tieredstore.kms import sealed_key  # noqa: PLC0415  rare, and loads a library
        from tieredstore.kms.base import key_source  # noqa: PLC0415

        source = key_source(pair.kms, pair.kms_key, pair.kms_endpoint_url)
        return sealed_key.open_sealed(text, name=name, pair=pair.id, service=pair.kms, source=source)
    if text.lstrip()[:1] == b"{":
        raise KeyRingError(f"{name} is not a PEM file; if it was sealed, name the service by private.key.kms")
    der = first_block(text, name)
    passphrase = _passphrase(pair)
    return der if passphrase is None else unprotect(der, passphrase, name)


def _name(pair: KeyPairSettings) -> str:
    if pair.private_key_env is not None:
        return f"the private key in the variable {pair.private_key_env}"
    if pair.private_key_fd is not None:
        return f"the private key from descriptor {pair.private_key_fd}"
    return str(pair.private_key_file)


def _text(pair: KeyPairSettings) -> bytes:
    if pair.private_key_env is not None:
        return variable_content(pair.private_key_env, f"private key of {pair.id}")
    if pair.private_key_fd is not None:
        return descriptor_content(pair.private_key_fd, f"private key of {pair.id}")
    # The settings require a file, a variable or a descriptor, so here it is a file.
    assert pair.private_key_file is not None
    return key_file_content(pair.private_key_file)


def _passphrase(pair: KeyPairSettings) -> bytes | None:
    if pair.passphrase_env is not None:
        return variable_content(pair.passphrase_env, f"passphrase of {pair.id}")
    if pair.passphrase_file is not None:
        return passphrase_in(pair.passphrase_file)
    return None


def passphrase_in(path: Path) -> bytes:
    """Return a file's first line without its line end. Raise KeyRingError if the file is unreadable or the line is
    empty."""
    passphrase = key_file_content(path).partition(b"\n")[0].removesuffix(b"\r")
    if not passphrase:
        raise KeyRingError(f"the first line of {path} is empty, and a passphrase is expected there")
    return passphrase


def variable_content(name: str, what: str) -> bytes:
    """Return the content of an environment variable. Raise KeyRingError if the variable is not set or empty."""
    text = os.environb.get(os.fsencode(name))
    if not text:
        raise KeyRingError(f"the environment variable {name}, which holds the {what}, is not set in this process")
    return text


def descriptor_content(number: int, what: str, *, timeout_s: float = _PIPE_TIMEOUT_S) -> bytes:
    """Read an open descriptor to its end. Raise KeyRingError if the text is empty, or if a pipe does not end within
    ``timeout_s``."""
    try:
        status = os.fstat(number)
        if stat.S_ISREG(status.st_mode):
            # Read at an explicit position, because other processes may share the descriptor and move its position.
            return os.pread(number, MAX_BYTES, 0)
        place = number, status.st_dev, status.st_ino
        with _lock:
            if place not in _from_pipes:
                _from_pipes[place] = _to_end(number, timeout_s)
            return _from_pipes[place]
    except OSError as error:
        raise KeyRingError(
            f"descriptor {number}, which gives the {what}, cannot be read in this process: {error.strerror}"
        ) from error


def _to_end(number: int, timeout_s: float) -> bytes:
    parts: list[bytes] = []
    deadline = Deadline.after(timeout_s)
    while sum(map(len, parts)) < MAX_BYTES:
        # Wait with a deadline. If nothing is written to the descriptor, as on a terminal, a read would block forever.
        if not select.select([number], [], [], max(0.0, deadline.remaining_s()))[0]:
            raise KeyRingError(f"descriptor {number} gave no key within {timeout_s:g} s; close its other end")
        part = os.read(number, MAX_BYTES)
        if not part:
            break
        parts.append(part)
    return b"".join(parts)
