"""Charts, words and settings, each by itself."""

import re
from types import SimpleNamespace

import pytest

from dpft.report.pages.frame import marked, page, text
from dpft.report.pages.settings import changes, configuration, differing, shown, told
from dpft.report.pages.svg import Line, chart
from tests.report.pages.example import Page, config


def shapes(html):
    return re.findall(r"<path class='line[^>]* d='([^']*)'><title>", html)


def corners(shape):
    return [tuple(map(float, pair.split())) for pair in re.findall(r"[ML]([\d. ]+)", shape)]


def test_a_chart_is_to_scale():
    """The axis from 0 to 10 and 5% above: a value at half its height lies half way up."""
    html = chart("t", [Line("a", ((0, 0.0), (5, 5.0), (10, 10.0)))], zero=True)
    (first, middle, last) = corners(shapes(html)[0])
    assert first[1] - middle[1] == pytest.approx(middle[1] - last[1], abs=0.11)
    assert middle[0] - first[0] == pytest.approx(last[0] - middle[0], abs=0.11)
    assert first[1] == 210.0  # the axis
    assert first[0] == 64.0
    assert last[0] == 626.0
    labels = re.findall(r"class='y'[^>]*>([^<]*)<", html)
    assert labels == ["0", "5", "10"]
    Page(page("t", html))


def test_a_logarithmic_axis_has_powers_and_gaps():
    html = chart("t", [Line("a", ((1, 0.01), (2, 0.0), (3, 1.0), (4, 100.0)))], log=True)
    assert re.findall(r"class='y'[^>]*>([^<]*)<", html) == ["0.01", "0.1", "1", "10", "100"]
    assert shapes(html)[0].count("M") == 2
    narrow = chart("t", [Line("a", ((1, 1.1), (2, 1.2)))], log=True)
    assert len(re.findall("class='y'", narrow)) > 1


def test_values_that_are_no_numbers_are_gaps():
    values = [1.0, None, 2.0, float("inf"), float("nan"), 3.0, 4.0]
    html = chart("t", [Line("a", tuple(enumerate(values)))])
    assert shapes(html)[0].count("M") == 3
    assert chart("t", [Line("a", ((1, None),))]) == ""
    assert chart("t", []) == ""
    assert "h0" in chart("t", [Line("a", ((7, 0.25),))])  # one point is a dot


def test_long_curves_are_thinned_and_keep_their_ends():
    line = Line("a", tuple((step, float(step)) for step in range(1, 1002)))
    html = chart("t", [line], points=101)
    points = corners(shapes(html)[0])
    assert len(points) == 101
    assert (points[0][0], points[-1][0]) == (64.0, 626.0)
    assert "every 10th step is drawn" in html


def test_lines_are_told_apart_and_named():
    html = chart("a < b", [Line(f"<{k}>", ((0, k), (1, k))) for k in range(10)])
    assert "class='line s1 d1'" in html
    assert "&lt;9&gt;</li>" in html
    assert len(set(re.findall(r"hsl\((\d+)", chart("t", [
        Line(str(k), ((0, k), (1, k))) for k in range(5)
    ], ordered=True)))) == 5  # fmt: skip


def test_settings_are_compared_with_the_chosen_files():
    found = {key: (value, usual) for key, value, usual in changes(config())}
    assert found["optim.lr"] == (0.004, 0.002)
    assert found["task.data_dir"][1] is None
    assert "privacy.epsilon" not in found  # 3, by ${eps}
    assert "eps" not in found
    assert "clip.threshold" not in found
    assert "optim.epochs" not in found
    assert {k: v for k, v, _ in changes(config(privacy__epsilon=8))}["privacy.epsilon"] == 8
    unknown = config(task={"name": "mine:Task", "size": 3}, model={"name": "../x", "path": "y"})
    assert {k for k, *_ in changes(unknown)} >= {"task.size", "model.path"}


def test_a_budget_of_a_run_without_privacy_is_no_difference():
    plain = config(clip={"style": "none", "threshold": None})
    found = differing([config(), plain, config(seed=2)])
    assert set(found) == {"clip.style", "clip.threshold", "seed"}
    assert found["clip.style"] == ["ghost", "none", "ghost"]
    budgets = differing([config(), plain, config(privacy__epsilon=8.0)])
    assert budgets["privacy.epsilon"] == ["3", "–", "8.0"]


def test_folders_are_not_told():
    assert told("task.data_dir=/home/me/e2e seed=1") == "task.data_dir=…/e2e seed=1"
    assert told("~/data/mine.jsonl") == "…/mine.jsonl"
    assert told("openai-community/gpt2 https://a.org/b/c 3/4") == (
        "openai-community/gpt2 https://a.org/b/c 3/4"
    )
    assert told("a=/home/jane doe/secret project/data seed=1") == "a=…/data seed=1"
    assert told("in '/home/jane doe/x y' or /tmp/z") == "in '…/x y' or …/z"
    assert told("/a/b.csv is no file of /a/c.csv") == "…/b.csv is no file of …/c.csv"
    assert shown("/home/doe, jane/secret's/my data") == "…/my data"
    assert told(told("/home/me/data openai/gpt2")) == told("/home/me/data openai/gpt2")
    assert shown(["/home/me/a.txt", None, True, 0.5]) == "[…/a.txt, null, true, 0.5]"


def test_choices_of_a_record_are_escaped():
    run = SimpleNamespace(config=config(model={"name": "<script>x</script>", "path": "p"}))
    assert "<script>" not in configuration(run)
    assert "model=&lt;script&gt;x&lt;/script&gt;" in configuration(run)


def test_text_is_escaped_once_and_marked_lines_are_bold():
    assert text("<&'\"") == "&lt;&amp;&#x27;&quot;"
    assert text(text("<")) == "&lt;"
    for unfit in ("\x00", "\ud800", "\N{RIGHT-TO-LEFT OVERRIDE}", "\N{LEFT-TO-RIGHT ISOLATE}"):
        assert text(f"a{unfit}b") == "a\N{REPLACEMENT CHARACTER}b"
    assert marked("> **Mind:** <x> `private/`") == (
        "<strong>Mind:</strong> &lt;x&gt; <code>private/</code>"
    )
