"""Settings of a pipeline. A setting that Secor has too has the same name."""
