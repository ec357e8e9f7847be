"""Restores Kafka from a bucket: the segments of a bucket as log directories of a broker, or its records in topics of a
running cluster."""
