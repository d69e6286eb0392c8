"""Headline claims of the papers as checks, over printed numbers and over our own.

`claim` reads the files in ``data``, `evaluate` makes the comparisons, `comparison` decides them,
`computed` gives numbers without runs, and `show` prints them. ``docs/how-to/tables.md`` says how to
add one.
"""
