"""Restore of Kafka from a bucket: segments into log directories of a broker, or records into topics of a running
cluster."""
