"""Estimate memory and time of a training step before a run: ``dpft plan``."""
