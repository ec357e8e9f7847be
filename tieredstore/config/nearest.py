"""Finds the known name that a wrong name probably stands for, by its letters or by the meaning of its words."""

from __future__ import annotations

import difflib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

_MAX_COMPONENTS: Final = 8  # No name has more components. A text from a wrong file can have a million.
_MAX_COMPARED: Final = 100  # maximum number of characters to compare; every name is shorter
_A_SLIP: Final = 0.85  # letters this similar mean a typing error, so that words are not compared
_MEANT: Final = 0.5
_WORD: Final = re.compile(r"[a-z0-9]+")

_SAME: Final[Sequence[str]] = (
    "class type kind backend provider impl implementation driver",
    "path dir directory folder root basedir",
    "bucket container blob",
    "s3 aws amazon minio",
    "gcs gcp google gs",
    "azure az abs wasb",
    "endpoint url uri address",
    "username user login",
    "secret password passwd",
    "retention ttl expiry expiration lifetime",
    "parallelism parallel threads thread workers concurrency",
    "compression compress compressed zstd codec",
    "encryption encrypt encrypted cipher aes",
    "enabled enable on use",
    "size bytes length",
    "key keys",
    "pair pairs",
    "indexes index",
    "manifest manifests",
    "chunk chunks",
    "limit throttle bandwidth quota",
    "ms millis milliseconds",
    "timeout deadline",
    "include included",
    "credentials credential creds",
)
"""Words with the same meaning; the first word of a line replaces the others."""

_MEANING: Final[Mapping[str, str]] = {word: line.split()[0] for line in _SAME for word in line.split()}


def did_you_mean(name: str, known: Iterable[str], *, otherwise: str = "", show: Callable[[str], object] = str) -> str:
    """Return the end of a message about an unknown name: a question with the nearest known name, formatted by ``show``.
    If no name is near, return ``otherwise``.
    """
    meant = nearest_name(name, known)
    words = otherwise if meant is None else f"did you mean {show(meant)}?"
    return f"; {words}" if words else ""


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that ``name`` probably stands for, or None.

    The first match in this order counts:

    1. a known name K, if ``name`` ends with ``.K``;
    2. a name with nearly the same letters;
    3. the name that shares most words or synonyms with ``name``, as ``storage.class.name`` and
       ``storage.backend.class`` do;
    4. the name with the most similar letters.
    """
    known, lowered = sorted(known), name.lower()
    components = lowered.rsplit(".", _MAX_COMPONENTS)
    # First case: the prefix is wrong, and the rest is a known name.
    for start in range(len(components)):
        if (ending := ".".join(components[start:])) in known:
            return ending
    similar = next(iter(difflib.get_close_matches(lowered, known, n=1)), None)
    if similar is not None and difflib.SequenceMatcher(None, similar, lowered).ratio() >= _A_SLIP:
        return similar
    return _find_by_words(lowered, known) or similar


def _find_by_words(name: str, known: Sequence[str]) -> str | None:
    """Return the known name that has most words in common with ``name``. Rare words count more than frequent ones."""
    if len(name) > _MAX_COMPARED:
        return None
    words = _words(name)
    words_of = {each: _words(each) for each in known}
    uses = Counter(word for each in words_of.values() for word in each)
    weights = {word: math.log(1 + len(words_of) / (1 + uses[word])) for word in (*uses, *words)}
    nearness = {each: _shared_weight(words, theirs, weights) for each, theirs in words_of.items()}
    nearest = max(known, key=lambda each: nearness[each], default=None)
    return nearest if nearest is not None and nearness[nearest] >= _MEANT else None


def _words(name: str) -> frozenset[str]:
    words: list[str] = _WORD.findall(name)
    return frozenset(_MEANING.get(word, word) for word in words)


def _shared_weight(words: AbstractSet[str], others: AbstractSet[str], weights: Mapping[str, float]) -> float:
    """Return the weight of the common words, as a share of the weight of all words (0 to 1)."""
    of_either = sum(weights[word] for word in words | others)
    return sum(weights[word] for word in words & others) / of_either if of_either else 0
