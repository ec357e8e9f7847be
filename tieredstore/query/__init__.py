"""Topics as Arrow streams, DuckDB tables and Polars frames. Needs ``tieredstore[arrow]``."""
