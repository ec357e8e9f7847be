"""The Spark data source and its functions."""
