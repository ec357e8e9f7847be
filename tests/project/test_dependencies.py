"""docs/reference/compatibility.md lists every package installed along with this one, and the licence it states."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib

import pytest

from tests.support.paths import REPOSITORY

OF_TESTS = {"servers", "test", "dev"}
PACKAGE = re.compile(r"`([\w-]+)`(?: \(([^)]*)\))?")

WORDS_OF_PACKAGES = {
    # Licences as the packages' metadata states them, where the page uses other words.
    "azure-storage-blob": "MIT License",
    "confluent-kafka": "Apache Software License",
    "diskcache": "Apache 2.0",
    "kazoo": "Apache Software License",
    "lz4": "BSD License",
    "matplotlib": "Python Software Foundation License",
    "pandas": "BSD 3-Clause",
    "pycryptodome": "BSD-2-Clause",  # some parts have the Unlicense and the MIT licence
    "PySocks": "BSD",
    "cryptography": "Apache-2.0 OR BSD-3-Clause",
    "prometheus-client": "Apache-2.0 AND BSD-2-Clause",
    "protobuf": "3-Clause BSD License",
}


def declared() -> dict[str, set[str]]:
    """Return each package that ``pip install tieredstore[…]`` installs, with the extras that need it (none: always)."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras: dict[str, set[str]] = {}
    for extra, requirements in {"": project["dependencies"], **project["optional-dependencies"]}.items():
        for requirement in requirements:
            name = re.split(r"[^\w.-]", requirement)[0]
            if extra not in OF_TESTS and name != "tieredstore":
                extras.setdefault(name, set()).update({extra} - {""})
    return extras


def documented() -> dict[str, tuple[set[str], str]]:
    page = (REPOSITORY / "docs" / "reference" / "compatibility.md").read_text()
    rows = [line.split(" | ") for line in page.partition("licence | packages")[2].partition("\n\n")[0].splitlines()[2:]]
    return {
        name: (set(re.findall(r"[\w-]+", extras)), licence)
        for licence, packages in rows
        for name, extras in PACKAGE.findall(packages)
    }


def test_every_package_is_documented_with_its_extra() -> None:
    assert {name: extras for name, (extras, _) in documented().items()} == declared()


@pytest.mark.parametrize("name", sorted(declared()))
def test_the_licence_is_the_one_that_the_package_states(name: str) -> None:
    metadata = importlib.metadata.metadata(name)
    fields = ("License-Expression", "License", "Classifier")
    stated = " ".join(text for field in fields for text in metadata.get_all(field) or [])
    assert WORDS_OF_PACKAGES.get(name, documented()[name][1]) in stated
