"""The generators of the pages in docs/reference; ``python -m tests.support.reference`` writes them (make docs)."""
