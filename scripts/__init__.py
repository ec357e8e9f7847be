"""Setup of a clone for `make demo` and `make test`: the virtual environment, the tools, and the servers for tests."""
