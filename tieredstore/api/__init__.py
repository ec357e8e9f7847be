"""The front door: a bucket and its methods. Its names are exported by ``tieredstore`` itself."""
