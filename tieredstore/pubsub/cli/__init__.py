"""The commands of batches on object storage."""
