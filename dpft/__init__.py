"""Differentially private fine-tuning, from one command to one record."""

__version__ = "0.1.0"
