"""The front door: a bucket, and what people ask of it. Its names are those of ``tieredstore`` itself."""
