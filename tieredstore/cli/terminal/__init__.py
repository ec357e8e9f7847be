"""Output to a terminal or a pipe: tables, pictures, progress, files."""
