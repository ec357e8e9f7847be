"""The interpreter of Spark's workers: a Python with this package, or an error that names the variable to set."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkAttributeError

from tieredstore.errors import ConfigError
from tieredstore.spark import TieredStoreDataSource, register
from tieredstore.spark.memq.data_source import MemqDataSource

SOURCES: list[type] = [TieredStoreDataSource, MemqDataSource]


class Session:
    """Minimal session for ``register``."""

    def __init__(self, python: str) -> None:
        self.sparkContext = self
        self.pythonExec = python
        self.dataSource = self
        self.registered: list[type] = []

    def register(self, source: type) -> None:
        self.registered.append(source)


def registered(python: str | Path) -> list[type]:
    session: Any = Session(str(python))
    register(session)
    sources: list[type] = session.registered
    return sources


def python_that_prints(folder: Path, text: str, code: int = 0) -> Path:
    """Write a script in place of an interpreter: it answers the check with this text and exit code."""
    path = folder / "python3"
    path.write_text(f"#!/bin/sh\necho '{text}'\nexit {code}\n")
    path.chmod(0o755)
    return path


def test_the_drivers_own_python_is_not_even_asked() -> None:
    assert registered(sys.executable) == SOURCES
    assert registered(Path(sys.executable).parent / "python3") == SOURCES


@pytest.mark.parametrize("missing", ["tieredstore", "tieredstore pyarrow"])
def test_a_python_without_the_package_is_named_with_the_variable(missing: str, tmp_path: Path) -> None:
    path = python_that_prints(tmp_path, missing)
    with pytest.raises(ConfigError) as refused:
        registered(path)
    said = missing.replace(" ", " and no ")
    assert str(refused.value) == (
        f"Spark's workers run {path}, which has no {said}: before the session begins, set PYSPARK_PYTHON to a "
        """Python that has it, for example the driver's: os.environ["PYSPARK_PYTHON"] = sys.executable"""
    )


def test_a_real_python_is_asked(tmp_path: Path) -> None:
    """An interpreter that is started through a link outside the environment has none of the environment's packages."""
    link = tmp_path / "python3"
    link.symlink_to(os.path.realpath(sys.executable))
    with pytest.raises(ConfigError, match="has no "):
        registered(link)


def test_a_python_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'no-such-python', which does not exist: .*set PYSPARK_PYTHON"):
        registered("no-such-python")


def test_another_python_that_has_the_package_will_do(tmp_path: Path) -> None:
    assert registered(python_that_prints(tmp_path, "")) == SOURCES


def test_what_cannot_be_asked_is_left_to_spark(tmp_path: Path) -> None:
    assert registered(python_that_prints(tmp_path, "tieredstore", code=1)) == SOURCES


def test_a_session_of_spark_connect_is_not_asked() -> None:
    class Remote(Session):
        @property
        def sparkContext(self) -> Any:  # noqa: N802
            raise PySparkAttributeError(errorClass="JVM_ATTRIBUTE_NOT_SUPPORTED", messageParameters={"attr_name": "x"})

        @sparkContext.setter
        def sparkContext(self, _: Any) -> None:  # noqa: N802
            pass

    session: Any = Remote("no-such-python")
    register(session)
    assert session.registered == SOURCES
