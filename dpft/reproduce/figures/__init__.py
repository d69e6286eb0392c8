"""The papers' figures: computed, or measured by recorded runs and ``dpft bench``."""
