"""Kafka's own bytes: record batches, index files, checkpoints, log directories."""
