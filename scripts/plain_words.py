"""Count archaic phrasing in comments, docstrings, messages and pages, by the rules of the house's English.

    python -m scripts.plain_words [PATH ...]            # each place, and the rate for each folder
    python -m scripts.plain_words --count               # the rates alone
    python -m scripts.plain_words --sample 40 --seed 7  # passages drawn at random, for a reader with fresh eyes

Fail if code or pages have more archaic phrases per 1,000 words than ``LIMIT``.
"""

from __future__ import annotations

import argparse
import ast
import io
import multiprocessing
import random
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

CODE: Final = (
    "tieredstore",
    "backends",
    "pyspark_memq",
    "pyspark_tieredstore",
    "scripts",
    "examples",
    "benchmarks",
    "tests",
)
PAGES: Final = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs")
LIMIT: Final = 6.0
"""The accepted number of archaic phrases per 1,000 words, for code and for pages separately."""

OPENINGS: Final = re.compile(
    r"(?:What|Whatever|Whether|Who|Whoever|Whose|Whom|Of|That|Where|So|Such|These|Those|All that|None)\b"
    r"(?! (?:is|are|does|do|can|should)\b[^.]*\?)"
)
"""Matches the beginning of a docstring that is neither a noun phrase nor an imperative."""

WORDS: Final = re.compile(
    r"""\b(?:
      whoever | whomever | whosoever | whatsoever | whom | whence | whither | wherein | whereby | whereof | whereupon
    | thereof | therein | thereby | thereupon | thereafter | hitherto | hereby | herein | hence | henceforth
      | forthwith
    | lest | ere | aught | naught | nought | anew | amiss | afresh | albeit | upon | betwixt | oft | nigh | yonder
    | somebody | anybody | meanwhile | beforehand | thither | ought | shall | shan't | needn't
    | (?:of|by|in|from|to|for|with|on|at|behind|before|after|under) \s (?:whose|whom)
    | (?:all|none|each|one|some|most|many|few|two|part|parts|any|neither|either|both) \s of \s (?:which|whom|whose)
    | of \s which | by \s which | by \s what | of \s what | for \s who | by \s who | by \s whose | of \s who
      | from \s who
    | (?:is|are|was|were|be|been|being) \s (?:not \s)? (?:told|said)
    | (?:is|are|was|were) \s (?:not \s)? to \s be | to \s be \s had | may \s not \s be \s had | had \s to \s be
    | has \s come | have \s come | had \s come | is \s come | comes? \s to \s be | came \s to \s be | has \s become
    | (?:has|have|had) \s (?:not|no) \s (?:the|a|an|any|yet) \b
    | (?:does|do|did) \s not \s any \s (?:more|longer) | no \s longer \s any | not \s any \s (?:more|longer)
    | need \s not | need \s no | dare \s not | may \s as \s well
    | nobody | no \s one \s (?:has|is|who) | one \s who | ones \s (?:who|that) | he \s who | those \s who
      | anyone \s who | who \s (?:reads|asks|writes|runs|lists|calls|wants|knows|has|sees|looks|waits|gives
      |takes|comes|closes|opens|uses|needs|leads|owns)
    | such \s (?:a \s )? ones? | such \s as \s (?:is|are|were) | as \s such \s ones
    | (?:this|that|another|the \s other|each|which|what|the \s first|the \s last|the \s next) \s one \s (?:is
      |has|was|may|that|of|stands|goes|comes)
    | one's | of \s one's \s own | of \s their \s own | of \s its \s own | of \s our \s own
    | for \s (?:it|they|he|this|that) \s (?:is|has|was|are|may|would|had)
    | but \s for | nothing \s but | all \s but | save \s for | not \s so | be \s it | let \s alone
    | (?:stands|stood|stand) \s (?:there|here|in|for|at|on|behind|before|beside|twice|once|alone|under|over
      |above|below|as)
    | (?:lies|lay|lain) \s (?:there|here|in|at|on|behind|before|beside|under|beneath)
    | (?:behind|beside) \s (?:it|them|this|that|the|what|its|each|one|an|a|those|these|any|him|all|offset)
    | (?:tells?|told) \s (?:of|apart|nothing|how|what|which|whether|so|that|it|them|who|where|when|the)
    | says? \s (?:so|no|nothing|what|which|whether|how|who|of|where|when) | said \s (?:so|by|to|of)
    | knows? \s (?:of|nothing|no) | known \s to \s nobody
    | (?:is|are|was|were) \s (?:had|made|done|gone|begun|taken|given|meant|left|kept|had) \s (?:anew|of|by \s who)
    | (?:is|are) \s (?:gone|come|risen|fallen) \b
    | goes \s (?:there|on|by|for|with|its) | went \s by | passes \s by | passed \s by | gone \s by
      | comes \s of | come \s of
    | in \s vain | for \s good | so \s long \s as | as \s yet | ever \s (?:so|since|after)
      | none \s the \s (?:less|worse)
    | no \s more \s (?:than|of|is|are) | nor \b | neither \s of | likewise | notwithstanding | whereas | inasmuch
    | as \s it \s (?:is|was|were|stands|stood|came|comes|lies|goes) | as \s they \s (?:are|were|stand|stood
      |came|come|lie)
    | what \s (?:is|was|are|were|it|they|he|has|had|have|may|must|can|could|would|will|comes|came|stands|stood
      |lies|goes|went|others|another|nobody|no|belongs|happens|else|follows|remains|counts|one|each|all|those
      |the|a|an|this|that|we|our|any|both|only|does|did|follows)
    | (?:all|everything|nothing|anything|something|none|much|more) \s (?:that|which|who) \s (?:is|was|has|had
      |are|were|it|they|may|must|can)
    | (?:all|anything|nothing|something|everything) \s (?:it|they|he|we) \s (?:has|have|had|is|was|were|knows|needs)
    )\b""",
    re.VERBOSE | re.IGNORECASE,
)
"""Matches the wordings in the left columns of the house's tables, as far as a pattern can find them."""

SUFFIXES: Final = {".py", ".pyx", ".pxd", ".h", ".c", ".md"}
_C_COMMENT: Final = re.compile(
    r"/\*.*?\*/|(?<![:'\"])//[^\n]*|^\s*#(?!include|define|if|el|end|undef|pragma)[^\n]*|(?<=\s{2})# [^\n]*",
    re.DOTALL | re.MULTILINE,
)
_FENCE: Final = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_CODE: Final = re.compile(r"``[^`]*``|`[^`]*`|https?://\S+")
_WORD: Final = re.compile(r"[A-Za-z][A-Za-z'-]*")


class Passage(NamedTuple):
    """A comment, docstring, message or paragraph."""

    path: Path
    line: int
    text: str
    opening: bool = False
    """True for a docstring, whose first words are checked too."""

    def places(self) -> list[str]:
        """Return each archaic phrase of the passage."""
        plain = _CODE.sub("X", self.text)
        found = [" ".join(match.group().split()) for match in WORDS.finditer(plain)]
        if self.opening and (first := OPENINGS.match(plain.lstrip())) is not None:
            found.insert(0, f"begins with {first.group()!r}")
        return found

    @property
    def words(self) -> int:
        """The words of the passage, without code in backticks."""
        return len(_WORD.findall(_CODE.sub(" ", self.text)))


def passages_of(path: Path) -> Iterator[Passage]:
    """Yield the prose of a Python, Cython, C or Markdown file."""
    source = path.read_text()
    match path.suffix:
        case ".md":
            yield from _paragraphs(path, _FENCE.sub(lambda fence: "\n" * fence.group().count("\n"), source))
        case ".py":
            yield from _strings(path, ast.parse(source))
            yield from _comments(path, source)
        case _:
            for comment in _C_COMMENT.finditer(source):
                yield Passage(path, source.count("\n", 0, comment.start()) + 1, comment.group())


def _paragraphs(path: Path, text: str) -> Iterator[Passage]:
    line = 1
    for paragraph in re.split(r"(\n\s*\n)", text):
        if _WORD.search(paragraph):
            yield Passage(path, line, paragraph.strip())
        line += paragraph.count("\n")


def _strings(path: Path, module: ast.Module) -> Iterator[Passage]:
    """Yield docstrings and messages. Every string of four words or more counts as a message, except in tests, where
    strings are data."""
    skipped: set[ast.AST] = set()
    for node in ast.walk(module):
        match node:
            case ast.Module() | ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                for at, child in enumerate(node.body):
                    match child:
                        case ast.Expr(value=ast.Constant(value=str(text)) as constant):
                            skipped.add(constant)
                            yield Passage(path, child.lineno, text, opening=at == 0)
                        case _:
                            pass
            case ast.JoinedStr(values=values):
                skipped.update(values)
                yield from _message(path, node, "".join(_literal(value) for value in values))
            case ast.Constant(value=str(text)) if node not in skipped:
                yield from _message(path, node, text)
            case _:
                pass


def _literal(value: ast.expr) -> str:
    match value:
        case ast.Constant(value=str(text)):
            return text
        case _:
            return "`X`"


def _message(path: Path, node: ast.expr, text: str) -> Iterator[Passage]:
    if "tests" not in path.parts and r"\b" not in text and len(_WORD.findall(text)) >= 4:
        yield Passage(path, node.lineno, text)


def _comments(path: Path, source: str) -> Iterator[Passage]:
    """Yield each comment. Comments on consecutive lines are one comment."""
    block: list[str] = []
    begin = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if block and token.start[0] != last + 1:
                yield Passage(path, begin, " ".join(block))
                block = []
            begin = begin if block else token.start[0]
            last = token.start[0]
            block.append(token.string.lstrip("#: "))
    if block:
        yield Passage(path, begin, " ".join(block))


def files_below(paths: Iterable[str | Path]) -> Iterator[Path]:
    """Yield the files that have prose, sorted."""
    for path in map(Path, paths):
        if path.is_dir():
            yield from sorted(
                file for file in path.rglob("*") if file.suffix in SUFFIXES and "golden" not in file.parts
            )
        elif path.is_file():
            yield path


class Count(NamedTuple):
    """The number of words of prose, and the number of archaic phrases among them."""

    words: int
    places: int

    @property
    def rate(self) -> float:
        """Places in 1,000 words."""
        return 1000 * self.places / max(self.words, 1)


def count(passages: Iterable[Passage]) -> Count:
    """Count the words and the archaic phrases of the passages."""
    words = places = 0
    for passage in passages:
        words += passage.words
        places += len(passage.places())
    return Count(words, places)


def main(arguments: list[str] | None = None) -> int:
    """Print the requested lists; return 1 if code or pages are above the limit."""
    parser = argparse.ArgumentParser(description="Count archaic phrasing.")
    parser.add_argument("paths", nargs="*", help="files and folders; the whole tree unless given")
    parser.add_argument("--count", action="store_true", help="print rates, and no places")
    parser.add_argument("--sample", type=int, metavar="N", help="print N passages drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(arguments)
    above = False
    for shelf in [tuple(asked.paths)] if asked.paths else [CODE, PAGES]:
        passages = [passage for file in files_below(shelf) for passage in passages_of(file)]
        if asked.sample:
            long = [passage for passage in passages if passage.words >= 8]
            for passage in random.Random(asked.seed).sample(long, min(asked.sample, len(long))):
                print(f"{passage.path}:{passage.line}\n    " + "\n    ".join(passage.text.split("\n")) + "\n")
            continue
        rooms: dict[str, list[Passage]] = defaultdict(list)
        for passage in passages:
            rooms["/".join(passage.path.parts[:2])].append(passage)
            if not asked.count:
                for place in passage.places():
                    print(f"{passage.path}:{passage.line}: {place}")
        with multiprocessing.Pool() as pool:
            counts = pool.map(count, rooms.values())
        for room, counted in sorted(zip(rooms, counts, strict=True)):
            print(f"{counted.rate:7.1f}  {counted.words:7,} words  {room}")
        whole = Count(sum(counted.words for counted in counts), sum(counted.places for counted in counts))
        print(f"{whole.rate:7.1f}  {whole.words:7,} words  in all; at most {LIMIT:g} are accepted\n")
        above |= whole.rate > LIMIT
    return int(above)


if __name__ == "__main__":
    sys.exit(main())
