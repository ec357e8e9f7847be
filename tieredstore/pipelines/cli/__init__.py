"""The commands of pipelines."""
