"""What an operator does to a bucket. These are the decisions; the words and tables are the command line's."""
