"""Where a record is filed: times and fields of messages, directories, names of files."""
