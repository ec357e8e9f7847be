"""What the clouds' stores share: bodies in parts, bulk deletion, credentials that rotate."""
