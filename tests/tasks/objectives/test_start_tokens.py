"""Tokenizers that begin every text with a token, or with a blank: Llama's, Gemma's, Mistral's."""

from types import SimpleNamespace

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from dpft.tasks.objectives.chat import ChatObjective
from dpft.tasks.objectives.generation import Causal, LanguageModel
from dpft.tasks.objectives.record_types import Conversation, TextRecord

SOME = SimpleNamespace(max_new_tokens=4)


def with_start():
    """Words, behind a start token."""
    words = ["<s>", "</s>", "<unk>", "a", "b", "c", "d", ":"]
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, "<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 0)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def with_blanks(scheme):
    """SentencePiece's: a blank before every text (``always``), or before the first part of one."""
    words = ["\u2581", "\u2581\u2581", "[Q]", "[A]", ":", "\n"]
    for word in ("Say", "yes", "Answer", "no", "[Q]", "[A]", "hi", "more", ":", "."):
        words += [f"\u2581{word}", word]
    vocabulary = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0)]
    vocabulary += [(word, -2.0) for word in dict.fromkeys(words)]
    made = Tokenizer(models.Unigram(vocabulary, unk_id=0))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    made.decoder = decoders.Metaspace(prepend_scheme=scheme)
    return PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def test_a_prompt_is_what_strangers_ask():
    tokenizer = with_start()
    objective = Causal(tokenizer, 32, ends=False, after=" :")
    example = objective.encode(TextRecord(("a b",), "c d"))
    asked = tokenizer("a b :")["input_ids"]
    assert list(example.prompt) == asked
    assert objective.prompts([TextRecord(("a b",), "")], SOME) == [(tuple(asked), 0)]
    assert [*example.prompt, *example.target] == tokenizer("a b : c d</s>")["input_ids"]


def test_a_text_begins_as_the_tokenizer_begins_one():
    tokenizer = with_start()
    objective = LanguageModel(tokenizer, 4)
    example = objective.encode(TextRecord((), "a b c d"))
    assert [*example.prompt, *example.target] == tokenizer("a b c")["input_ids"]
    assert example.cut_target == 2
    assert objective.prompts([TextRecord((), "")], SOME) == [((0,), 0)]


@pytest.mark.parametrize("scheme", ["always", "first"])
def test_pieces_have_the_tokens_of_the_whole(scheme):
    tokenizer = with_blanks(scheme)
    objective = Causal(tokenizer, 32, before="Say", after="\nAnswer:", ends=False)
    example = objective.encode(TextRecord((" yes",), "no"))
    whole = tokenizer("Say yes\nAnswer: no")["input_ids"]
    assert [*example.prompt, *example.target] == [*whole, tokenizer.eos_token_id]
    ((asked, _),) = objective.prompts([TextRecord((" yes",), "")], SOME)
    assert asked == example.prompt


@pytest.mark.parametrize("scheme", ["always", "first"])
def test_turns_are_trained_as_they_are_asked(scheme):
    template = (
        "{{ bos_token }}{% for m in messages %}{% if m.role=='user' %}[Q] {{ m.content }} [A]"
        "{% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
    )
    objective = ChatObjective(with_blanks(scheme), 64, template=template)
    said = ("hi", "yes", "more", "no")
    talk = Conversation((*zip(("user", "assistant") * 2, said, strict=True),))
    example = objective.encode(talk)
    ((asked, _),) = objective.prompts([talk], SOME)
    assert (*example.prompt, *example.target)[: len(asked)] == asked
