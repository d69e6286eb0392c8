"""Tokens that can be read: a text is encoded as its letters."""

from types import SimpleNamespace

from dpft.config.schema import Decode


def letters_with(end):
    """A tokenizer whose tokens are letters, and whose end token is ``end``."""
    return SimpleNamespace(
        eos_token_id=ord(end), encode=lambda text, **settings: [ord(c) for c in text]
    )


def loaded_letters(end, positions=None):
    """What a task makes an objective for; positions None: as many as there may be."""
    limits = {} if positions is None else {"max_position_embeddings": positions}
    model = SimpleNamespace(config=SimpleNamespace(**limits))
    return SimpleNamespace(text_tokenizer=letters_with(end), model=model)


def spelled(ids):
    return "".join(map(chr, ids))


def prompt_of(objective, record, room=1):
    """What a text is written from, with so much room left to write."""
    ((ids, _),) = objective.prompts([record], Decode(max_new_tokens=room))
    return ids
