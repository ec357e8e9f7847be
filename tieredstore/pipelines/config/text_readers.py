"""Readers of text in pipeline settings. Each raises ValueError for text that it does not accept."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping


def path_prefix(text: str) -> str:
    """Return ``text`` if it can be the prefix of a directory's name; raise ValueError otherwise."""
    if "/" in text or text in {".", ".."}:
        raise ValueError
    return text


def matcher(pattern: str) -> Callable[[str], str]:
    """Return a reader that accepts a text only if the whole text matches the pattern."""

    def parse(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError
        return text

    return parse


def read_name(names: Mapping[str, str], *, own: bool = False) -> Callable[[str], str]:
    """Return a reader of short names. The reader also accepts Secor's class names, which ``names`` maps to short names.

    With ``own``, the reader also accepts the user's own class as ``module:Class``.
    """
    known = {**names, **{short: short for short in names.values()}}

    def parse(text: str) -> str:
        if own and re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", text):
            return text
        if text not in known:
            raise ValueError
        return known[text]

    return parse
