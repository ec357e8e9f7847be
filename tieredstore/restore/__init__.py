"""Puts what is in a bucket back into Kafka: the same batches into log directories, or its records into topics."""
