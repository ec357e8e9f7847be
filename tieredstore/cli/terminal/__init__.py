"""What a terminal or a pipe is given: tables, pictures, progress, files."""
