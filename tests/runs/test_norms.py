"""Gradient norms of single records, as a run writes them and figures read them."""

import torch

from dpft.runs import NORMS, MetricsLog, norms_of, read_norms


def test_norms_are_read_as_they_were_written_and_again_from_where_a_run_goes_on(tmp_path):
    with MetricsLog(tmp_path / NORMS) as log:
        for step in (0, 2, 4):
            norms = [torch.full((1, 2), float(step)), torch.full((2, 2), 0.1234567)]
            log.append(norms_of(step, ["a", "b"], norms, 3, 4))
    with MetricsLog(tmp_path / NORMS, resume_step=3) as log:
        log.append(norms_of(4, ["a", "b"], [torch.tensor([[7.0, 8.0]])]))
    found = read_norms(tmp_path / NORMS)
    assert [(one.step, len(one.values)) for one in found] == [(0, 3), (2, 3), (4, 1)]
    assert found[0].values[1] == (0.123457, 0.123457)
    assert found[2].values == ((7.0, 8.0),)
    assert [(one.signal, one.noise) for one in found[1:]] == [(3, 4), (None, None)]
