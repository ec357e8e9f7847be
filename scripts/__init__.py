"""What sets a clone up for `make demo` and `make test`: the virtual environment, the tools and the tests' servers."""
