"""Puts what is in a bucket back into Kafka: the files of a log directory, with the same batches at the same offsets."""
