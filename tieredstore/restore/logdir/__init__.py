"""Restore of segments into the log directories of stopped brokers: the same batches at the same offsets."""
