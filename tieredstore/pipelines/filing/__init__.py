"""Choice of a record's directory and file name, by times and fields of messages."""
