"""Batches on object storage in the manner of MemQ: publish and subscribe without a broker. See docs/pubsub.md."""
