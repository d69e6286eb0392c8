"""The papers again: tables, figures, claims and benchmarks beside printed numbers."""
