"""What no message repeats: credentials and queries of URLs, wherever a text that others wrote holds one."""

from __future__ import annotations

import re
from typing import Final

_USER: Final = re.compile(r"//[^\s'\"]*@|\b[A-Za-z][\w+.-]*:[^\s'\"]*@")
"""From ``//``, or from what stands before the first colon, up to the last ``@``: passwords hold slashes too."""
_QUERY: Final = re.compile(r"\?[^\s'\")]+")
"""Queries hold signatures."""


def redacted(text: object) -> str:
    """``text`` for a message, with ``…`` for the credentials and the queries of its URLs."""
    return _QUERY.sub("?…", _USER.sub(_shown, str(text)))


def _shown(match: re.Match[str]) -> str:
    return "//…@" if match[0].startswith("//") else f"{match[0].partition(':')[0]}:…@"
