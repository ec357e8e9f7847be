"""An operator's tools for a bucket. Each plans and acts; the command line shows results as sentences and tables."""
