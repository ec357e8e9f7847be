"""An operator's tools for a bucket. They decide and act; their words and tables are the command line's."""
