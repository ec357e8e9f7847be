"""Production of a bucket's records into topics of a running cluster, each record exactly once."""
