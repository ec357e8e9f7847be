"""The site that ``make site`` builds lists every page, has the API, and loads nothing from the network."""

from __future__ import annotations

import re
import subprocess
import tomllib

import pytest

from scripts.site import conf
from tests.project.test_public_imports import PUBLIC
from tests.support.paths import REPOSITORY

CITATION = (REPOSITORY / "CITATION.cff").read_text()


def test_the_contents_have_every_page() -> None:
    listed = conf.contents((REPOSITORY / "docs" / "README.md").read_text())
    pages = {
        path.relative_to(REPOSITORY / "docs").with_suffix("").as_posix() for path in (REPOSITORY / "docs").rglob("*.md")
    }
    assert pages - {*re.findall(r"^[a-z/-]+$", listed, re.MULTILINE)} == {"README"}


def test_the_api_has_the_packages_with_public_names() -> None:
    documented = re.findall(r"automodule:: (\S+)", (REPOSITORY / "scripts/site/api.rst").read_text())
    assert {*documented} == PUBLIC


def test_links_to_folders_are_text_and_others_stay() -> None:
    page = REPOSITORY / "docs" / "README.md"
    assert conf.without_folders("[a](how-to) [b](how-to/read.md#x) [c](https://a.b)", page) == (
        "a [b](how-to/read.md#x) [c](https://a.b)"
    )


def test_the_citation_is_of_this_release() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert f"version: {conf.version}\n" in CITATION
    assert f"license: {project['license']}\n" in CITATION


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_the_site_needs_no_network() -> None:
    subprocess.run(["make", "site"], cwd=REPOSITORY, check=True, timeout=1700)
    site = REPOSITORY / "build" / "site"
    for page in [*site.rglob("*.html"), *site.rglob("*.css")]:
        assert not re.findall(
            r"""(?:<script[^>]+src=|<link[^>]+href=|url\(|@import )["']?(?:https?:)?//""", page.read_text()
        )
    assert "watermark" in (site / "searchindex.js").read_text()
    assert "tieredstore.Bucket.read" in (site / "scripts/site/api.html").read_text()
