"""Filing of records: times and fields of messages, directories, file names."""
