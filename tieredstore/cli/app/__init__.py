"""The program: its table of commands, options, help, errors, start and end."""
