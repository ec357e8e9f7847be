"""Redaction of credentials and queries in URLs, for messages that contain texts from elsewhere."""

from __future__ import annotations

import re
from typing import Final

_USER: Final = re.compile(r"//[^\s'\"]*@|\b[A-Za-z][\w+.-]*:[^\s'\"]*@")
"""Matches the user and password of a URL. The match begins at ``//``, or at the word before the first colon. It ends at
the last ``@``, and may contain slashes, because passwords may.
"""
_QUERY: Final = re.compile(r"\?[^\s'\")]+")
"""Matches the query of a URL, because it may contain a signature."""


def redacted(text: object) -> str:
    """Return ``text`` for a message, with ``…`` for the credentials and the queries of its URLs."""
    return _QUERY.sub("?…", _USER.sub(_hide, str(text)))


def _hide(match: re.Match[str]) -> str:
    return "//…@" if match[0].startswith("//") else f"{match[0].partition(':')[0]}:…@"
