"""A clipping style: the embeddings are one group, with a small part of the budget."""

from torch import nn

from dpft.privacy.clipping.groups import OwnGroup


def embeddings_apart(model: nn.Module, names: tuple[str, ...]) -> list[OwnGroup]:
    """Two groups: ``C_k^2`` of the embeddings is a tenth of ``C^2``, that of the rest the rest."""
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    embeddings = [name for name in names if id(model.get_parameter(name)) in tables]
    rest = [name for name in names if name not in embeddings]
    return [OwnGroup("embeddings", embeddings, share=0.1), OwnGroup("rest", rest, share=0.9)]
