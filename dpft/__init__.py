"""Differentially private fine-tuning, from one command to one record."""

from dpft.privacy import register_rules

__version__ = "0.1.0"

register_rules("dpft.models.layer_rules")
