"""The last module that the server of forked processes imports: what all of them need is made.

Settings are composed once, which compiles grammars and patterns. Objects are taken from the garbage
collector, which would write to every page of them in every process.
"""

import gc

from hydra.core.global_hydra import GlobalHydra

from dpft.config.compose import compose
from dpft.config.schema import parse

parse(compose(["task=text2text", "model=random-gpt2"]))
GlobalHydra.instance().clear()
gc.collect()
gc.freeze()
