"""The options of a cloud's store are known without its SDK."""

from __future__ import annotations

from tests.support.fresh_python import run_fresh


def test_the_options_of_a_cloud_are_known_without_its_sdk() -> None:
    code = """
        import sys
        import tieredstore.backends.azure.options, tieredstore.backends.gcs.options, tieredstore.backends.s3.options
        import tieredstore.backends.registry
        print(sorted({"azure", "boto3", "botocore", "google.cloud", "requests", "urllib3"} & set(sys.modules)))
        print(tieredstore.backends.s3.options.S3Options("logs").url, "boto3" in sys.modules)
    """
    assert run_fresh(code).splitlines() == ["[]", "s3://logs False"]
