"""Config groups whose files set what other groups define: chosen with ``+``, none by default."""

PRESETS = ("experiment", "hparams_search")
