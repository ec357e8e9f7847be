"""The command line ``tieredstore``: one file per command group, each command a thin layer over the library."""
