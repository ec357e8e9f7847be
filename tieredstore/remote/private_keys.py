"""Where a private key comes from: a file, a variable, or a descriptor; plain, protected by a passphrase, or sealed.

Only its bytes are held, by this process, and nothing of them is in a message.
"""

from __future__ import annotations

import os
import select
import stat
import threading
from typing import TYPE_CHECKING, Final

from tieredstore.errors import KeyRingError
from tieredstore.process.deadline import Deadline
from tieredstore.transform.keyring import KeyPair
from tieredstore.transform.pem import (
    MAX_BYTES,
    first_block,
    key_file_content,
    private_key,
    read_public_key,
    unprotected,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tieredstore.config import KeyPairSettings

_PIPE_TIMEOUT_S: Final = 30.0
_lock: Final = threading.Lock()
_from_pipes: Final[dict[tuple[int, int, int], bytes]] = {}
"""What came through pipes, by their descriptor, device and inode: it comes once, and settings may be read again."""


def key_pair_of(pair: KeyPairSettings) -> KeyPair:
    """The pair that the settings describe; KeyRingError or KeyServiceError as in ``key_ring_of``."""
    name = _name(pair)
    return KeyPair.of(
        read_public_key(pair.public_key_file), private_key(private_key_der(pair), name), name, str(pair.public_key_file)
    )


def private_key_der(pair: KeyPairSettings) -> bytes:
    """The private key (PKCS#8, DER), opened; whether it is one of RSA is not looked at."""
    name, text = _name(pair), _text(pair)
    if pair.kms is not None and pair.kms_key is not None:
        from tieredstore.kms import sealed_key  # noqa: PLC0415  rare, and loads a library
        from tieredstore.kms.registry import key_source  # noqa: PLC0415

        source = key_source(pair.kms, pair.kms_key, pair.kms_endpoint_url)
        return sealed_key.opened(text, name=name, pair=pair.id, service=pair.kms, source=source)
    if text.lstrip()[:1] == b"{":
        raise KeyRingError(f"{name} is not a PEM file; if it was sealed, name the service by private.key.kms")
    der = first_block(text, name)
    passphrase = _passphrase(pair)
    return der if passphrase is None else unprotected(der, passphrase, name)


def _name(pair: KeyPairSettings) -> str:
    if pair.private_key_env is not None:
        return f"the private key in the variable {pair.private_key_env}"
    if pair.private_key_fd is not None:
        return f"the private key from descriptor {pair.private_key_fd}"
    return str(pair.private_key_file)


def _text(pair: KeyPairSettings) -> bytes:
    if pair.private_key_env is not None:
        return _variable(pair.private_key_env, f"private key of {pair.id}")
    if pair.private_key_fd is not None:
        return _descriptor(pair.private_key_fd, f"private key of {pair.id}")
    # The settings see to it that one of the three is there.
    assert pair.private_key_file is not None
    return key_file_content(pair.private_key_file)


def _passphrase(pair: KeyPairSettings) -> bytes | None:
    if pair.passphrase_env is not None:
        return _variable(pair.passphrase_env, f"passphrase of {pair.id}")
    if pair.passphrase_file is not None:
        return passphrase_in(pair.passphrase_file)
    return None


def passphrase_in(path: Path) -> bytes:
    """The first line of a file, without its end; KeyRingError if it cannot be read, or is empty."""
    passphrase = key_file_content(path).partition(b"\n")[0].removesuffix(b"\r")
    if not passphrase:
        raise KeyRingError(f"the first line of {path} is empty, and a passphrase is expected there")
    return passphrase


def _variable(name: str, what: str) -> bytes:
    text = os.environb.get(os.fsencode(name))
    if not text:
        raise KeyRingError(f"the environment variable {name}, which holds the {what}, is not set in this process")
    return text


def _descriptor(number: int, what: str) -> bytes:
    try:
        status = os.fstat(number)
        if stat.S_ISREG(status.st_mode):
            # By position: other processes may share the descriptor and its place in the file.
            return os.pread(number, MAX_BYTES, 0)
        place = number, status.st_dev, status.st_ino
        with _lock:
            if place not in _from_pipes:
                _from_pipes[place] = _to_end(number)
            return _from_pipes[place]
    except OSError as error:
        raise KeyRingError(
            f"descriptor {number}, which gives the {what}, cannot be read in this process: {error.strerror}"
        ) from error


def _to_end(number: int) -> bytes:
    parts: list[bytes] = []
    deadline = Deadline.after(_PIPE_TIMEOUT_S)
    while sum(map(len, parts)) < MAX_BYTES:
        # A descriptor that nobody writes to, a terminal's, would wait for ever.
        if not select.select([number], [], [], max(0.0, deadline.remaining_s()))[0]:
            raise KeyRingError(f"descriptor {number} gave no key within {_PIPE_TIMEOUT_S:g} s; close its other end")
        part = os.read(number, MAX_BYTES)
        if not part:
            break
        parts.append(part)
    return b"".join(parts)
