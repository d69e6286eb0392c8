"""Plans: how sums of clipped gradients are formed. All leave the same sums.

============ ========= ============================================ ==========================
plan         backwards what is held                                 source
============ ========= ============================================ ==========================
materialised one       every per-example gradient                   Abadi et al. 2016; Opacus
lee_kifer    two       the graph, and one layer's gradients         Lee & Kifer 2021
ghost        two       the graph                                    Li et al. 2022, section 4
bk           one       ``(a, g)`` of all layers, to the end         Bu et al. 2023
fused        one       ``(a, g)`` of one group, freed on the way    He et al. 2022, section 3
============ ========= ============================================ ==========================
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from dpft.privacy.clipping.plans.batch import ClippingBatch, LostRecordError
from dpft.privacy.clipping.plans.one_backward import bookkeeping, groupwise, materialised
from dpft.privacy.clipping.plans.two_backwards import ghost, lee_kifer

PRIVATE_PLANS: Mapping[str, Callable[[ClippingBatch], None]] = MappingProxyType(
    {
        "materialised": materialised,
        "lee_kifer": lee_kifer,
        "ghost": ghost,
        "bk": bookkeeping,
        "fused": groupwise,
    }
)

__all__ = ["PRIVATE_PLANS", "ClippingBatch", "LostRecordError"]
