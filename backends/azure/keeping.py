"""What a container keeps of blobs that are deleted: soft deletes, and what is immutable."""

from __future__ import annotations

from typing import Any

from tieredstore.backends.azure.client import AzureClient


def kept_sentences(client: AzureClient) -> list[str]:
    """A sentence each. Versions are a property that only Azure's management tells: of that nothing is said."""
    untyped: Any = client.container
    kept: list[str] = []
    container = untyped.get_container_properties()
    if container.has_immutability_policy or container.has_legal_hold:
        what = "a legal hold" if container.has_legal_hold else "an immutability policy"
        kept.append(f"the container has {what}: blobs under it cannot be deleted before it ends")
    policy = untyped._get_blob_service_client().get_service_properties()["delete_retention_policy"]
    if policy is not None and policy.enabled:
        kept.append(f"the account has soft delete: what is deleted stays, and costs, for {policy.days} days")
    return kept
