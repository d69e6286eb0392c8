"""Which scores there will be is known before anything is trained."""

import pytest

from dpft.config.compose import compose
from dpft.config.errors import ConfigError
from dpft.config.schema import parse
from dpft.reproduce.papers import load, names
from dpft.tasks import load_task
from dpft.tasks.scores import check_metric, lower_is_better


@pytest.fixture(autouse=True)
def _no_meteor(monkeypatch):
    """Its start takes seconds, and the scores' names are asked for here, not their values."""
    monkeypatch.setattr("dpft.tasks.metrics.coco.meteor", lambda *_: 0.5)


@pytest.mark.parametrize(
    ("name", "metric"),
    [
        ("mnli", "accuracy_mismatched"),
        ("personachat", "token_perplexity"),
        ("samsum", "ROUGE_L"),
    ],
)
def test_every_score_of_a_task_is_known_beforehand(name, metric):
    run = parse(compose([f"task={name}", "task.source=sample"]))
    task = load_task(run.task)
    check_metric(metric, task, run.decode.split)
    with pytest.raises(ConfigError, match=f"did you mean '{metric}'"):
        check_metric(f"{metric}_", task, run.decode.split)


def test_papers_columns_have_the_direction_of_their_metric():
    assert lower_is_better("accuracy", ("accuracy",)), "as a task of the user's says"
    for name in names():
        for column in load(*name.split("/")).columns:
            for metric in column.metrics:
                assert column.higher_is_better is not lower_is_better(metric), (name, metric)
