"""Settings of a pipeline, under Secor's names where Secor has them."""
