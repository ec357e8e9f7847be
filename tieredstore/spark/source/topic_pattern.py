"""``subscribePattern``: a Java expression for the names of topics, as one of Python's.

Names of topics are ASCII without spaces, so that the two languages differ in a few spellings only. These are
translated; what Python would read otherwise than Java is refused.
"""

from __future__ import annotations

import re
import warnings
from typing import Final

from tieredstore.errors import ConfigError

_CLASSES: Final = {
    "Lower": "a-z", "Ll": "a-z", "IsLowercase": "a-z", "Upper": "A-Z", "Lu": "A-Z", "IsUppercase": "A-Z",
    "Alpha": "a-zA-Z", "L": "a-zA-Z", "IsAlphabetic": "a-zA-Z", "IsLetter": "a-zA-Z",
    "Digit": "0-9", "N": "0-9", "Nd": "0-9", "IsDigit": "0-9", "Alnum": "a-zA-Z0-9", "Punct": "._\\-", "P": "._\\-",
}  # fmt: skip
_SPELLINGS: Final = re.compile(
    r"\\Q(?P<quoted>.*?)(?:\\E|\Z)"
    r"|\\p(?:\{(?P<property>\w+)\}|(?P<short>[LNP]))"
    r"|(?P<group>\(\?<(?=[a-zA-Z]))"
    r"|\\k<(?P<back>\w+)>"
    r"|(?P<end>\\[zZ])"
    r"|(?P<octal>\\(?:0|[1-9][0-9]{2}))"
    r"|(?P<escaped>\\.)"
    r"|(?P<inside>&&)",
    re.DOTALL,
)


def python_pattern(pattern: str) -> str:
    """The expression of Python's ``re`` that matches the topics that Java's ``pattern`` does, by whole name.

    ConfigError for an empty one, and for one that cannot be read.
    """
    if not pattern:
        raise ConfigError("the option subscribePattern is empty; it must match the whole name of a topic, as topic-.*")
    translated = _SPELLINGS.sub(_translate, pattern)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)  # sets of sets, which mean something in Java alone
            re.compile(translated)
    except (re.error, FutureWarning, OverflowError, RecursionError) as error:
        reason = "it has sets of sets" if isinstance(error, FutureWarning) else str(error)
        raise _unreadable(pattern, reason) from None
    return translated


def _translate(spelling: re.Match[str]) -> str:
    kind = spelling.lastgroup
    if kind == "quoted":
        return re.escape(spelling["quoted"])
    if kind in ("property", "short"):
        return _class(spelling)
    if kind == "octal":
        raise _unreadable(spelling.string, f"{spelling[0]} is a character to the one language and a group to the other")
    if kind == "inside":
        raise _unreadable(spelling.string, "it has && of Java's sets")
    return {"group": "(?P<", "back": f"(?P={spelling['back']})", "end": r"\Z"}.get(kind or "", spelling[0])


def _class(spelling: re.Match[str]) -> str:
    name = spelling["property"] or spelling["short"]
    if name not in _CLASSES:
        raise _unreadable(spelling.string, f"\\p{{{name}}} is not known here")
    opened = spelling.string[: spelling.start()]
    is_in_set = opened.count("[") - opened.count("\\[") > opened.count("]") - opened.count("\\]")
    return _CLASSES[name] if is_in_set else f"[{_CLASSES[name]}]"


def _unreadable(pattern: str, reason: str) -> ConfigError:
    shown = repr(pattern if len(pattern) <= 80 else f"{pattern[:80]}…")
    return ConfigError(f"the option subscribePattern is {shown}, which cannot be read: {reason}")
