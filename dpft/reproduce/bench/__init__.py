"""``dpft bench``: what clipping costs, against non-private training and against peers.

Each variant (a clipping style or a peer) runs in a fresh process, round after round in rotated
order. Its steps alternate with those of a process that trains without privacy, so that a machine
which others use, and whose speed changes from second to second, hits both alike. The parent
process imports no torch; `dpft.reproduce.bench.worker` is what it starts, and `models`, `steps`,
`peers`, `memory` and `explain` are what that is made of.
"""

from dpft.reproduce.bench.catalog import MODELS, PEERS, STYLES
from dpft.reproduce.bench.settings import BenchSettings, Variant
from dpft.reproduce.bench.statistics import VariantSummary, summarise

__all__ = ["MODELS", "PEERS", "STYLES", "BenchSettings", "Variant", "VariantSummary", "summarise"]
