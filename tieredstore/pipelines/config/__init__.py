"""Settings of a pipeline. Settings that Secor also has keep Secor's names."""
