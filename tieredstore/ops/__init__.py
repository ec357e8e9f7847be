"""An operator's tools for a bucket. Each tool plans its steps and carries them out. The command line shows the results
as sentences and tables.
"""
