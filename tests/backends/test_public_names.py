"""Each store has one public name, at its folder; importing only the options does not import an SDK."""

from __future__ import annotations

import importlib

import pytest

from tests.support.fresh_python import run_fresh
from tieredstore.backends.base import ObjectStore

FOLDERS = {
    "filesystem": "FilesystemObjectStore",
    "s3": "S3ObjectStore",
    "gcs": "GcsObjectStore",
    "azure": "AzureObjectStore",
}


@pytest.mark.parametrize(("folder", "name"), FOLDERS.items())
def test_a_store_is_offered_by_its_folder(folder: str, name: str) -> None:
    module = importlib.import_module(f"tieredstore.backends.{folder}")
    assert issubclass(getattr(module, name), ObjectStore)
    assert name in module.__all__
    for public in module.__all__:
        assert getattr(module, public).__name__ == public
    with pytest.raises(AttributeError, match="no attribute 'Absent'"):
        _ = module.Absent


def test_the_names_of_a_cloud_are_known_without_its_sdk() -> None:
    code = """
        import sys
        import tieredstore.backends.azure, tieredstore.backends.gcs, tieredstore.backends.s3
        import tieredstore.backends.registry
        print(sorted({"azure", "boto3", "botocore", "google.cloud", "requests", "urllib3"} & set(sys.modules)))
        print(tieredstore.backends.s3.S3Options("logs").url, "boto3" in sys.modules)
    """
    assert run_fresh(code).splitlines() == ["[]", "s3://logs False"]
