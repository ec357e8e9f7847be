"""A bucket's records produced into topics of a running cluster, each exactly once."""
