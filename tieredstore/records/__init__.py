"""Records of a topic from the bucket, by offset or by time, as Arrow. Needs ``tieredstore[arrow]``."""
