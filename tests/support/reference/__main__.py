"""Writes all generated pages."""

from tests.support.reference.pages import write_pages

write_pages()
