"""What Kafka's own bytes mean: record batches, index files, checkpoints, log directories."""
