"""Code that comes with a model's files is never run, whatever is typed at the terminal."""

import json
import os
import pty
import shutil
import sys

import pytest

from dpft.config.errors import ModelError
from dpft.config.schema import Model
from dpft.models.load import BUNDLED as FOLDER
from dpft.models.load import find, load_model
from dpft.models.needs import Needs

CAUSAL = Needs("causal")
CODE = """
import pathlib
pathlib.Path({mark!r}).write_text("run")
from transformers import GPT2Config, GPT2LMHeadModel, GPT2TokenizerFast
class Config(GPT2Config):
    model_type = "of-its-own"
class Net(GPT2LMHeadModel):
    config_class = Config
class Words(GPT2TokenizerFast):
    pass
"""


@pytest.fixture(autouse=True)
def yes_is_typed(monkeypatch):
    """A terminal on which the answer to any question is yes."""
    keyboard, terminal = pty.openpty()
    os.write(keyboard, b"y\n" * 8)
    with os.fdopen(terminal) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert sys.stdin.isatty()
        yield
    os.close(keyboard)


def _folder(path, mark, model_type=None, maps=(), **tokenizer):
    shutil.copytree(FOLDER / "tiny", path)
    (path / "own.py").write_text(CODE.format(mark=str(mark)))
    config = json.loads((path / "config.json").read_text())
    config |= {"model_type": model_type} if model_type else {}
    config["auto_map"] = dict(maps)
    (path / "config.json").write_text(json.dumps(config))
    words = json.loads((path / "tokenizer_config.json").read_text())
    (path / "tokenizer_config.json").write_text(json.dumps(words | tokenizer))
    return str(path)


def test_a_folder_with_code_of_its_own_is_refused_though_yes_is_typed(tmp_path):
    mark = tmp_path / "mark"
    maps = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Net"}
    own = {"tokenizer_class": "Words", "auto_map": {"AutoTokenizer": [None, "own.Words"]}}
    folder = _folder(tmp_path / "m", mark, "of-its-own", maps, **own)
    with pytest.raises(ModelError, match=r"brings Python code.*never runs"):
        load_model(Model("mine", folder), CAUSAL, 0)
    with pytest.raises(ModelError, match="brings Python code"):
        find(Model("mine", folder)).tokenizer()
    assert not mark.exists()
