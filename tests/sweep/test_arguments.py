"""What may be typed after dpft sweep, and what a list of points may hold."""

import pytest

from dpft.config.errors import ConfigError
from dpft.sweep.arguments import parse_arguments, read_list


def test_flags_and_overrides_in_any_order(tmp_path):
    words = parse_arguments(["eps=1,2", "-m", "--config-dir", str(tmp_path), "+experiment=demo"])
    assert words.overrides == ("eps=1,2", "+experiment=demo")
    assert words.config_dir == tmp_path
    assert parse_arguments([f"-cd={tmp_path}"]).config_dir == tmp_path
    assert parse_arguments(["--multirun"]).overrides == ()


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("--epsilon 3", "there is no flag --epsilon; did you mean 'eps'?"),
        ("--cfg job", "does not take Hydra's flag --cfg"),
        ("--config-dir nowhere", "--config-dir is 'nowhere'; expected a folder"),
        ("--config-dir", "got --config-dir without a folder"),
        ("resume=runs/x", "continue by themselves"),
        ("force=true", "type dpft train"),
        ("hydra.job.chdir=true", "where they were planned"),
        ("++force=true", "type dpft train"),
        ("sweep.list=x", "type --list FILE"),
        ("sweep.keep_going=false", "type --fail-fast"),
    ],
)
def test_what_a_sweep_does_not_take(typed, message):
    with pytest.raises(ConfigError) as caught:
        parse_arguments(typed.split())
    assert message in str(caught.value)


def test_a_list_has_a_point_a_line(tmp_path):
    file = tmp_path / "points.txt"
    file.write_text("# seeds\nseed=1 eps=3\n\nseed=2  'task.data_dir=\"a b\"' # the odd one\n")
    assert read_list(file) == (("seed=1", "eps=3"), ("seed=2", 'task.data_dir="a b"'))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed=1\nresume=x\n", "points.txt, line 2: got resume=x in a sweep"),
        ("seed=1\n-m seed=2\n", "points.txt, line 2: got '-m'; expected NAME=VALUE"),
        ("hydra/launcher=joblib\n", "line 1: got 'hydra/launcher=joblib'; expected settings of a"),
        ("sweep.metric=BLEU\n", "line 1: got 'sweep.metric=BLEU'"),
        ("seed='1\n", "line 1: No closing quotation"),
        ("\n# nothing\n", "holds no points"),
    ],
)
def test_a_bad_list_is_refused_with_its_line(tmp_path, text, message):
    file = tmp_path / "points.txt"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_list(file)
    assert message in str(caught.value)


def test_a_list_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="cannot read the list"):
        read_list(tmp_path / "none.txt")
