"""The vocabulary: what it names is there."""

from dpft.privacy import sampling, spec
from dpft.privacy.clipping import CLIP_FUNCTIONS
from dpft.privacy.clipping.plans import PRIVATE_PLANS


def test_each_name_has_its_code():
    assert ("none", *PRIVATE_PLANS) == spec.PLANS
    assert tuple(CLIP_FUNCTIONS) == spec.CLIP_FUNCTIONS
    assert tuple(sampling.SAMPLERS) == spec.SAMPLINGS


def test_a_style_has_the_name_of_its_parts():
    for name, parts in spec.STYLES.items():
        assert (spec.style_of(parts), spec.misfit(parts)) == (name, None)
