"""Differentially private fine-tuning, from one command to one record."""

from dpft.privacy.families import register

__version__ = "0.1.0"

register("dpft.models.layers")
