"""The public API: a bucket and its methods. ``tieredstore`` itself exports these names."""
