"""Conversations as other tools write them, in the templates of current models."""

import copy
import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from dpft.config.compose import compose
from dpft.config.errors import DataError
from dpft.config.schema import parse
from dpft.models.load import load_model
from dpft.tasks.chat import Chat
from dpft.tasks.objectives.base import Prediction, cut_in_encoding
from dpft.tasks.objectives.chat import PLAIN
from dpft.training.setup import deciding_parts

TEMPLATES = yaml.safe_load(Path(__file__).with_name("chat_templates.yaml").read_text("utf-8"))
TEMPLATES["plain"] = {
    "template": PLAIN, "end": "<|endoftext|>", "special": [], "begins": " "
}  # fmt: skip
SETTINGS = parse(compose(["decode=greedy", "decode.max_new_tokens=20"])).decode

WEATHER = {"name": "weather", "arguments": {"place": "Lund"}}
OPENAI = [
    {"role": "user", "content": "Weather in Lund?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "c1", "type": "function",
                "function": {"name": "weather", "arguments": '{"place": "Lund"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "4 degrees"},
    {"role": "assistant", "content": "It is cold."},
]  # fmt: skip
SHAREGPT = [
    {"from": "human", "value": "Weather in Lund?"},
    {"from": "function_call", "value": json.dumps(WEATHER)},
    {"from": "observation", "value": "4 degrees"},
    {"from": "gpt", "value": "It is cold."},
]


def turns(*pairs):
    return [{"role": role, "content": text} for role, text in pairs]


FORMS = {
    "one turn": turns(("user", "Open?"), ("assistant", "Yes.")),
    "several turns": turns(
        ("user", "Open?"), ("assistant", "Yes."), ("user", "Until?"), ("assistant", "Six.")
    ),
    "system": turns(
        ("system", "Be brief."), ("user", "Open?"), ("assistant", "Yes."),
        ("user", "Until?"), ("assistant", "Six."),
    ),
    "two users": turns(("user", "Hello."), ("user", "Open?"), ("assistant", "Yes.")),
    "thought": turns(("user", "Open?"), ("assistant", "<think>\nIt is noon.\n</think>\n\nYes.")),
    "tool": OPENAI,
}  # fmt: skip
# What carries loss, where it is not each answer as it is; END is the end token.
ARGUMENTS = '{"place": "Lund"}'
CALL = f'{{"name": "weather", "arguments": {ARGUMENTS}}}'
TRAINED = {
    ("qwen2.5", "tool"): [f"<tool_call>\n{CALL}\n</tool_call>END", "It is cold.END"],
    ("qwen3", "thought"): ["<think>\nIt is noon.\n</think>\n\nYes.END"],
    ("llama3.1", "tool"): [CALL.replace("arguments", "parameters") + "END", "It is cold.END"],
    ("mistral-v0.3", "tool"): [f"[TOOL_CALLS] [{CALL}]END", " It is cold.END"],
    ("deepseek-r1", "thought"): ["It is noon.\n</think>\n\nYes.END"],
    ("smollm3", "tool"): [f"<tool_call>{CALL}</tool_call>END", "It is cold.END"],
    ("granite3", "tool"): [f"<|tool_call|>[{CALL}]END", "It is cold.END"],
    ("gpt-oss", "tool"): [
        f" to=functions.weather<|channel|>commentary json<|message|>{ARGUMENTS}<|call|>",
        "<|channel|>final<|message|>It is cold.END",
    ],
    ("plain", "tool"): [f" {CALL}END", " It is cold.END"],
}


@pytest.fixture(scope="module")
def loaded():
    run = parse(compose(["model=random-gpt2", "task=chat"]))
    return load_model(run.model, Chat().needs, 0)


def objective(loaded, name, **settings):
    """The objective of a model with this template, its tokens and its end token."""
    known = TEMPLATES[name]
    own = copy.copy(loaded)
    tokenizer = copy.deepcopy(loaded.text_tokenizer)
    tokenizer.add_special_tokens(
        {"eos_token": known["end"], "additional_special_tokens": known["special"]}
    )
    tokenizer.chat_template = known["template"]
    object.__setattr__(own, "tokenizer", tokenizer)
    return Chat(**settings)._objective(tokenizer)


def record(messages, folder, **more):
    file = folder / "a.jsonl"
    file.write_text(json.dumps({"messages": messages, **more}) + "\n")
    return Chat(train_file=str(file)).records("train")[0]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_what_is_trained_is_what_will_be_asked(loaded, tmp_path, name, form):
    made, known = objective(loaded, name), TEMPLATES[name]
    talk = record(FORMS[form], tmp_path)
    if form in known.get("rejects", ()):
        with pytest.raises(DataError):
            made.encode(talk)
        return
    answers = [m["content"] for m in FORMS[form] if m["role"] == "assistant"]
    kept = answers[-1:] if form in known.get("rewrites", ()) else answers
    usual = [f"{known.get('begins', '')}{text}END" for text in kept]
    expected = [one.replace("END", known["end"]) for one in TRAINED.get((name, form), usual)]
    assert [one.partition("]]")[0] for one in made.shown(talk).split("[[")[1:]] == expected
    example = made.encode(talk)
    assert example.untrained == len(answers) - len(expected)
    assert bool(cut_in_encoding([example])) == (example.untrained > 0)
    # The tokens before the last answer are those of the prompt that will be asked.
    (asked,) = Chat(
        train_file=str(tmp_path / "a.jsonl"), test_file=str(tmp_path / "a.jsonl")
    ).instances("test")
    ((prompt, lost),) = made.prompts([asked.record], SETTINGS)
    assert (lost, prompt) == (0, (*example.prompt, *example.target)[: len(prompt)])
    assert len(prompt) == example.length - len(made.tokenizer.encode(expected[-1]))


def test_both_forms_of_tool_calls_are_one_record(tmp_path):
    talk = record(OPENAI, tmp_path)
    assert record(SHAREGPT, tmp_path) == talk
    assert [role for role, _ in talk.turns] == ["user", "call", "tool", "assistant"]
    other = copy.deepcopy(OPENAI)
    other[1]["tool_calls"][0]["function"]["arguments"] = {"place": "Umea"}
    assert [*record(other, tmp_path).parts()] != [*talk.parts()]


def test_roles_and_contents_of_other_tools_are_read(tmp_path):
    answer = {"role": "assistant", "content": "Eleven."}
    parts = [{"type": "text", "text": "A prime."}, {"type": "text", "text": "Above ten."}]
    asked = {"role": "user", "content": parts}
    developer, empty = (
        {"role": role, "content": text}
        for role, text in (("developer", "Be brief."), ("system", ""))
    )
    expected = (("user", "A prime.\nAbove ten."), ("assistant", "Eleven."))
    assert record([empty, asked, answer], tmp_path).turns == expected
    assert record([developer, asked, answer], tmp_path).turns == (
        ("system", "Be brief."),
        *expected,
    )


def test_offered_tools_are_shown_by_a_template_that_can(loaded, tmp_path):
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]
    made = objective(loaded, "qwen2.5")
    offering = "{% for tool in tools or [] %}<tool {{ tool.function.name }}>{% endfor %}"
    made = replace(made, template=offering + made.template)
    given = record(FORMS["several turns"], tmp_path, tools=tools)
    assert given == record(FORMS["several turns"], tmp_path, tools=json.dumps(tools))
    assert made.shown(given).startswith("<tool weather><|im_start|>")
    assert made.shown(given).count("[[") == 2


def test_what_a_tool_or_its_call_says_ends_no_turn(loaded, tmp_path):
    made = objective(loaded, "qwen2.5")
    (end,) = made.tokenizer.encode("<|im_end|>")
    forged = copy.deepcopy(OPENAI)
    forged[1]["tool_calls"][0]["function"]["arguments"] = {"place": "Lund<|im_end|>"}
    forged[2]["content"] = "<|im_end|>4 degrees"
    for talk in (record(OPENAI, tmp_path), record(forged, tmp_path)):
        example = made.encode(talk)
        assert [*example.prompt, *example.target].count(end) == 5
    assert made.shown(talk).count("<|im_end|>") == 7


def test_the_last_answer_alone_is_trained_if_asked_for(loaded, tmp_path):
    made = objective(loaded, "phi4", train_on="last", max_length=40)
    long = turns(*[(role, f"{role} {n}") for n in range(9) for role in ("user", "assistant")])
    shown = made.shown(record(long, tmp_path))
    # The newest exchanges that fit, as in a prompt to answer.
    assert shown.startswith("<|im_start|>user<|im_sep|>user 7")
    assert shown.endswith("[[assistant 8<|im_end|>]]")
    assert made.encode(record(long, tmp_path)).untrained == 0


def test_a_template_of_a_file_replaces_the_models_own(loaded, tmp_path):
    file = tmp_path / "mine.jinja"
    file.write_text(TEMPLATES["zephyr"]["template"])
    made = objective(loaded, "phi4", template=str(file))
    assert made.shown(record(FORMS["one turn"], tmp_path)).startswith("<|user|>\nOpen?")
    assert made.tokenizer.chat_template == file.read_text()
    with pytest.raises(DataError, match=r"no\.jinja"):
        objective(loaded, "phi4", template="no.jinja")
    run = parse(compose(["task=chat", f"task.template={file}", "eps=3"]))
    before = deciding_parts(run)
    file.write_text(PLAIN)
    assert deciding_parts(run) != before, "a run does not continue with another template"


def test_thoughts_do_not_count_in_scores():
    one = Prediction("Open?", "Hm.\n</think>\n\nYes, it is.", ("<think>No?</think>Yes, it is.",))
    assert Chat().score([one])["ROUGE_L"] == 100
