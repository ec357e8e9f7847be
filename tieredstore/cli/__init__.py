"""The command line ``tieredstore``: one file a command group, every command a thin layer over the library."""
