"""Headline claims of the papers as checks, over printed numbers and over our own."""
