"""Node.js's crypto module (OpenSSL): an independent implementation of RSA-OAEP with SHA-3."""

from __future__ import annotations

import json
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

from scripts.toolchain import NODE, provide

# By default, MGF1 uses the same digest as OAEP.
_UNWRAP: Final = """
const { constants, privateDecrypt } = require("node:crypto");
const { key, wrapped } = JSON.parse(require("node:fs").readFileSync(0, "utf8"));
const options = { key, padding: constants.RSA_PKCS1_OAEP_PADDING, oaepHash: "sha3-512" };
process.stdout.write(privateDecrypt(options, Buffer.from(wrapped, "hex")));
"""


def unwrap_with_node(private: Path, wrapped: bytes) -> bytes:
    """Return the data key, unwrapped by the private key of a PEM file."""
    request = json.dumps({"key": private.read_text(), "wrapped": wrapped.hex()})
    command: list[str | Path] = [_node(), "-e", _UNWRAP]
    return subprocess.run(command, input=request.encode(), capture_output=True, check=True, timeout=60).stdout


@cache
def _node() -> Path:
    return provide(NODE)
