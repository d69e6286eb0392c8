"""The steps of a `PrivateTrainer` taken by hand: one backward a record, and plain SGD."""

import torch
import torch.nn.functional as F

from dpft.privacy import Mechanism, keys
from dpft.privacy.noise import Slice, noisy_means_
from dpft.privacy.sampling import PoissonSampler
from dpft.runs.noise_key import key_from_seed
from tests.privacy.reference import clip_records, record_gradients


def take_steps(model, data, *, seed, batch, steps, sigma, threshold, rate, delta=1e-3):
    """Move a causal model's weights in place.

    Returns:
        The mechanism, and how many records each step drew.
    """
    key = key_from_seed(seed)
    mechanism = Mechanism(len(data), batch, steps, sigma, (threshold,), delta)
    sampler = PoissonSampler(mechanism, key)

    def loss(i):  # of one record alone
        ids = torch.tensor([data[i]["input_ids"]])
        logits = model(input_ids=ids).logits[0, :-1]
        return -F.log_softmax(logits, -1)[torch.arange(ids.shape[1] - 1), ids[0, 1:]].mean()

    sizes = []
    for step in range(steps):
        drawn = sampler.batch(step)
        sizes.append(len(drawn))
        records = record_gradients(model, lambda j, drawn=drawn: loss(drawn[j]), len(drawn))
        _, sums = clip_records(records, [[*records[0]]], lambda k, n: min(1.0, threshold / n))
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                flat = sums[name].reshape(-1).contiguous()
                std = sigma * threshold
                noisy_means_([Slice(flat, keys.derive(key, "noise", step, name), std)], batch)
                parameter.data.sub_(rate * flat.view_as(parameter))
    return mechanism, sizes
