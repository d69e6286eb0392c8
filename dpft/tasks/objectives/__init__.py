"""Objectives: how records become losses and predictions, one file per kind of model output."""
