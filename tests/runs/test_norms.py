"""Gradient norms of single records: when asked for, and without changing anything else."""

import torch

from dpft.runs import NORMS, NormsLog, read_norms


def test_every_so_many_steps_and_again_from_where_a_run_goes_on(tmp_path):
    with NormsLog(tmp_path, 2, ["a", "b"]) as log:
        for step in range(5):
            log.append(step, [torch.full((1, 2), float(step)), torch.full((2, 2), 0.1234567)], 3, 4)
        log.append(6, [])  # an empty batch
    with NormsLog(tmp_path, 2, ["a", "b"], resume_step=3) as log:
        log.append(4, [torch.tensor([[7.0, 8.0]])])
    found = read_norms(tmp_path / NORMS)
    assert [(one.step, len(one.values)) for one in found] == [(0, 3), (2, 3), (4, 1)]
    assert found[0].values[1] == (0.123457, 0.123457)
    assert found[2].values == ((7.0, 8.0),)
    assert [(one.signal, one.noise) for one in found[1:]] == [(3, 4), (None, None)]
