"""URLs of stores, ``scheme://name/prefix``, and their translation into properties."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import SplitResult, urlsplit

from tieredstore.config.values import plain
from tieredstore.errors import ConfigError
from tieredstore.redaction import redacted

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
"""Control characters, which are refused: ``urlsplit`` would silently remove some of them."""


def show_url(url: str) -> str:
    """Return ``url`` for a message, without its query and without credentials (everything up to the last ``@``)."""
    scheme, colon, rest = re.split(r"[?#]", url, maxsplit=1)[0].partition(":")
    _, at, after = rest.rpartition("@")
    return repr(f"{scheme}{colon}…@{after}" if at else f"{scheme}{colon}{rest}")


def split_url(url: str, schemes: tuple[str, ...]) -> SplitResult:
    """Split the URL of a store. Raise ConfigError if it is invalid; the message does not quote a URL that may contain a
    password.
    """
    parts = _parts(url)
    if parts is None:
        # Do not chain the original error, whose message may quote the URL.
        raise ConfigError("this is not the URL of a store: it cannot be split into its parts")
    if parts.scheme == "memory":
        raise ConfigError("a store in memory ends with its process: name a store that lasts")
    if parts.scheme not in schemes:
        known = ", ".join(f"{scheme}://" for scheme in schemes)
        raise ConfigError(f"the URL of a store starts with one of {known}; a folder's path with /, ./ or ../")
    if "@" in parts.netloc or "?" in url or "#" in url:
        raise ConfigError(
            "the URL of a store is its scheme, its name and a prefix, without credentials, '?' and '#'; "
            "set credentials and an unusual key.prefix in the settings file"
        )
    if _CONTROL.search(url) or url != url.strip():
        raise ConfigError(f"{show_url(url)} contains a control character, or blanks around it")
    return parts


def _parts(url: str) -> SplitResult | None:
    try:
        return urlsplit(url)
    except ValueError:
        return None


def bucket_of(parts: SplitResult) -> str:
    """Return the bucket or container of a cloud's URL."""
    if not parts.netloc or ":" in parts.netloc:
        raise ConfigError(
            f"{show_url(parts.geturl())} names no bucket: write {parts.scheme}://name or {parts.scheme}://name/prefix"
        )
    return check_exact(parts.netloc)


def prefix_of(parts: SplitResult) -> dict[str, str]:
    """Return the property ``key.prefix`` if a cloud's URL has a path. The path is not percent-decoded."""
    path = parts.path.removeprefix("/")
    if not path:
        return {}
    return {"key.prefix": check_exact(path if path.endswith("/") else f"{path}/")}


def check_exact(text: str) -> str:
    """Return ``text``. Raise ConfigError if it is empty, or if a settings file would strip blanks or quotes from its
    ends."""
    if not text or plain(text) != text:
        raise ConfigError(f"{redacted(text)!r} cannot be part of a store's URL: set it in the settings file")
    return text
