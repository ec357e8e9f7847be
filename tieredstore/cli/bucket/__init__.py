"""Commands that show or change the contents of a bucket."""
