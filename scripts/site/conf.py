"""Configuration of the web site: the pages of ``docs`` as they are, and the API from the docstrings (``make site``).

Sphinx reads the repository's root, so that it checks every link between pages. The pages are in the order of the links
in ``docs/README.md``, which is the only list of pages.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from tieredstore import __version__

_ROOT: Final = Path(__file__).resolve().parent.parent.parent
_INDEX: Final = "docs/README"
_ABOUT: Final = ("README", "CHANGELOG", "CONTRIBUTING", "SECURITY", "CODE_OF_CONDUCT")

project = "tieredstore"
author = "the authors of tieredstore"
version = release = __version__
root_doc = _INDEX
include_patterns = ["docs/**.md", *(f"{name}.md" for name in _ABOUT), "scripts/site/api.rst"]
exclude_patterns = [
    ".*",
    "build",
    "dist",
    "demo-out",
    "tests",
    "benchmarks",
    "examples",
    "tieredstore",
    "**/__pycache__",
]
extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_heading_anchors = 4

html_theme = "furo"
html_title = f"tieredstore {__version__}"
html_extra_path = ["index.html"]
html_copy_source = False
html_show_copyright = False

autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_member_order = "groupwise"
autodoc_typehints = "description"
autodoc_class_signature = "separated"


def contents(text: str) -> str:
    """Return hidden tables of contents: one for each section of the index, and one for the pages about the project."""
    sections = re.findall(r"^## (.+)\n((?:(?!## ).*\n)*)", text, re.MULTILINE)
    tables = [(name, re.findall(r"\]\(([a-z-]+/[a-z-]+)\.md\)", body)) for name, body in sections]
    tables.append(("API", ["/scripts/site/api"]))
    tables.append(("Project", [f"/{name}" for name in _ABOUT]))
    return "".join(
        f"\n```{{toctree}}\n:hidden:\n:caption: {name}\n\n" + "\n".join(pages) + "\n```\n" for name, pages in tables
    )


def without_folders(text: str, page: Path) -> str:
    """Return the page's text without links to folders of the repository, because the site does not contain them."""

    def shown(link: re.Match[str]) -> str:
        return link[1] if (page.parent / link[2]).is_dir() else link[0]

    return re.sub(r"\[([^\]]+)\]\(([^)#:]+)\)", shown, text)


def _read(_: object, name: str, source: list[str]) -> None:
    source[0] = without_folders(source[0], _ROOT / f"{name}.md")
    if name == _INDEX:
        source[0] += contents(source[0])


def setup(app: Any) -> None:
    """Register our handler with Sphinx, which calls this function."""
    app.connect("source-read", _read)
