"""The documentation's web site: the configuration of Sphinx, and the API page."""
