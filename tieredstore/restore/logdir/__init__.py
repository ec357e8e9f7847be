"""The same batches at the same offsets, written into the log directories of a stopped cluster."""
