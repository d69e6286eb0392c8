"""Synthetic records: sampled from a private run, with their guarantee, and how good they are."""
