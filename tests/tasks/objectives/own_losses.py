"""A check of every objective on texts: a record's loss depends on that record alone."""

import torch


def check_losses_are_their_own(model, objective, records):
    """In a batch a loss is that of the record alone, and reaches no other row and no padding."""
    examples = [objective.encode(record) for record in records]
    assert len({example.length for example in examples}) > 1
    batch, captured = objective.collate(examples), []
    with torch.no_grad():
        alone = [objective.losses(model, objective.collate([example]))[0] for example in examples]
    embeddings = model.get_input_embeddings()
    handle = embeddings.register_forward_hook(lambda m, a, out: captured.append(out))
    losses = objective.losses(model, batch)
    handle.remove()
    assert losses.shape == (len(records),)
    close = {"rtol": 1e-8, "atol": 1e-10} if losses.dtype == torch.float64 else {
        "rtol": 1e-4, "atol": 1e-5
    }  # fmt: skip
    torch.testing.assert_close(losses, torch.stack(alone), **close)
    for i in range(len(records)):
        (g,) = torch.autograd.grad(losses[i], captured, retain_graph=True)
        others = torch.arange(len(records)) != i
        assert g[i].abs().sum() > 0
        assert g[others].abs().sum() == 0
        assert g[i][batch.tensors["attention_mask"][i] == 0].abs().sum() == 0
