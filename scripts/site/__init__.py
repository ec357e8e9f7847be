"""The site of the documentation: the configuration of Sphinx, and the page of the API."""
