"""Tokens that can be read: a text is encoded as its letters."""

from types import SimpleNamespace

from dpft.config.schema import Decode


class Letters:
    def __init__(self, end):
        self.eos_token, self.eos_token_id = end, ord(end)

    def __call__(self, text, **settings):
        several = isinstance(text, list)
        return {"input_ids": [*map(self.encode, text)] if several else self.encode(text)}

    def encode(self, text, **settings):
        return [ord(c) for c in text]


def loaded_letters(end, positions=None):
    """Return what a task makes an objective for; positions None: as many as there may be."""
    limits = {} if positions is None else {"max_position_embeddings": positions}
    model = SimpleNamespace(config=SimpleNamespace(**limits))
    return SimpleNamespace(text_tokenizer=Letters(end), model=model)


def spelled(ids):
    return "".join(map(chr, ids))


def prompt_of(objective, record, room=1):
    """Return the prompt of a text, with so much room left to write."""
    ((ids, _),) = objective.prompts([record], Decode(max_new_tokens=room))
    return ids
