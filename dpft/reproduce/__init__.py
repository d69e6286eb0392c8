"""The papers again: tables, figures, claims and benchmarks next to printed numbers."""
