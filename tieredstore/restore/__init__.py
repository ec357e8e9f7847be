"""Puts what is in a bucket back into Kafka: the same batches at the same offsets, written into log directories."""
