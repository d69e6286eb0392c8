"""Charts, settings and text, each by itself."""

import colorsys
import re
from importlib.resources import files

import pytest

from dpft.report.html import render
from dpft.report.pages.charts import Line, chart
from dpft.report.pages.guarantee import GuaranteeSection
from dpft.report.pages.sections import Section
from dpft.report.pages.settings import changes, differing, value_text, without_folders
from tests.report.pages.example import Page, config


def html_of(kind, data):
    return render("section.html", section=Section(kind, data))


def path_of(values, **style):
    return chart("t", [Line("a", tuple(values))], **style).curves[0].path


def corners(path):
    return [tuple(map(float, pair.split())) for pair in re.findall(r"[ML]([\d. ]+)", path)]


def test_a_chart_is_to_scale():
    """The axis from 0 to 10 and 5% above: a value at half its height lies half way up."""
    drawn = chart("t", [Line("a", ((0, 0.0), (5, 5.0), (10, 10.0)))], zero=True)
    (first, middle, last) = corners(drawn.curves[0].path)
    assert first[1] - middle[1] == pytest.approx(middle[1] - last[1], abs=0.11)
    assert middle[0] - first[0] == pytest.approx(last[0] - middle[0], abs=0.11)
    assert (first[0], first[1], last[0]) == (drawn.LEFT, drawn.BASE, drawn.RIGHT)
    assert [label for _, label in drawn.up] == ["0", "5", "10"]
    assert drawn.up[1][0] == pytest.approx(middle[1], abs=0.05)


def test_a_logarithmic_axis_has_powers_and_gaps():
    drawn = chart("t", [Line("a", ((1, 0.01), (2, 0.0), (3, 1.0), (4, 100.0)))], log=True)
    assert [label for _, label in drawn.up] == ["0.01", "0.1", "1", "10", "100"]
    assert drawn.curves[0].path.count("M") == 2
    narrow = chart("t", [Line("a", ((1, 1.1), (2, 1.2)))], log=True)
    assert len(narrow.up) > 1


def test_values_that_are_no_numbers_are_gaps():
    values = [1.0, None, 2.0, float("inf"), float("nan"), 3.0, 4.0]
    assert path_of(enumerate(values)).count("M") == 3
    assert chart("t", [Line("a", ((1, None),))]) is None
    assert chart("t", []) is None
    assert "h0" in path_of([(7, 0.25)])  # one point is a dot


def test_long_curves_are_thinned_and_keep_their_ends():
    line = Line("a", tuple((step, float(step)) for step in range(1, 1002)))
    drawn = chart("t", [line], points=101)
    points = corners(drawn.curves[0].path)
    assert len(points) == 101
    assert points[0][0] == pytest.approx(drawn.LEFT + (drawn.RIGHT - drawn.LEFT) / 1001, abs=0.11)
    assert points[-1][0] == drawn.RIGHT
    assert drawn.remarks == "one step of 10 is drawn"


def test_lines_can_be_told_apart_by_look_and_name():
    lines = [Line(f"<{k}>", ((0, k), (1, k))) for k in range(10)]
    html = html_of("charts", [chart("a < b", lines)])
    assert 'class="line s1 d1"' in html
    assert "&lt;9&gt;</li>" in html
    assert "a < b" in Page(html, whole=False).text
    ordered = html_of("charts", [chart("t", lines[:5], ordered=True)])
    assert len(set(re.findall(r'style="stroke: hsl\((\d+)', ordered))) == 5


def test_settings_are_compared_with_the_chosen_files():
    found = {key: (value, usual) for key, value, usual in changes(config())}
    assert found["optim.lr"] == (0.004, 0.002)
    assert found["task.data_dir"][1] is None
    # The epsilon is that of ${eps}, and the others are as shipped.
    assert not {"privacy.epsilon", "eps", "clip.threshold", "optim.epochs"} & set(found)
    assert {k: v for k, v, _ in changes(config(privacy__epsilon=8))}["privacy.epsilon"] == 8
    unknown = config(task={"name": "mine:Task", "size": 3}, model={"name": "../x", "path": "y"})
    assert {k for k, *_ in changes(unknown)} >= {"task.size", "model.path"}


def test_a_budget_of_a_run_without_privacy_is_no_difference():
    plain = config(clip={"plan": "none", "threshold": None})
    found = differing([config(), plain, config(seed=2)])
    assert set(found) == {"clip.style", "clip.threshold", "seed"}
    assert found["clip.style"] == ["ghost", "none", "ghost"]
    budgets = differing([config(), plain, config(privacy__epsilon=8.0)])
    assert budgets["privacy.epsilon"] == ["3", "–", "8.0"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("task.data_dir=/home/me/e2e seed=1", "task.data_dir=…/e2e seed=1"),
        ("~/data/mine.jsonl", "…/mine.jsonl"),
        (
            "openai-community/gpt2 https://a.org/b/c 3/4",
            "openai-community/gpt2 https://a.org/b/c 3/4",
        ),
        ("a=/home/jane doe/secret project/data seed=1", "a=…/data seed=1"),
        ("in '/home/jane doe/x y' or /tmp/z", "in '…/x y' or …/z"),
        ("/a/b.csv is no file of /a/c.csv", "…/b.csv is no file of …/c.csv"),
    ],
)
def test_of_folders_the_last_part_is_left(text, expected):
    assert without_folders(text) == expected
    assert without_folders(expected) == expected


def test_a_setting_is_one_path_whatever_stands_in_it():
    assert value_text("/home/doe, jane/secret's/my data") == "…/my data"
    assert value_text(["/home/me/a.txt", None, True, 0.5]) == "[…/a.txt, null, true, 0.5]"


def test_text_is_escaped_once_and_what_is_no_text_is_replaced():
    assert "<p>&lt;&amp;&#39;&#34;</p>" in html_of("brief", "<&'\"")
    for unfit in ("\x00", "\ud800", "\N{RIGHT-TO-LEFT OVERRIDE}", "\N{LEFT-TO-RIGHT ISOLATE}"):
        for kind, data in (("brief", f"a{unfit}b"), ("summary", [(f"a{unfit}b", f"a{unfit}b")])):
            html = html_of(kind, data)
            assert "a\N{REPLACEMENT CHARACTER}b" in html
            assert unfit not in html


def test_what_is_not_covered_may_have_bold_words_and_code():
    lines = ("**The `x/`:** <x> `private/` \x00",)
    html = html_of("guarantee", GuaranteeSection((), not_covered=lines))
    assert (
        "<li><strong>The <code>x/</code>:</strong> &lt;x&gt; <code>private/</code> "
        "\N{REPLACEMENT CHARACTER}</li>"
    ) in html


def colours(css):
    """Its custom properties that are colours, by name, as red, green and blue."""
    found = re.findall(r"--([\w]+): #([0-9a-f]{3}|[0-9a-f]{6})\b", css)
    long = {n: "".join(c * 2 for c in v) if len(v) == 3 else v for n, v in found}
    return {n: [int(v[k : k + 2], 16) for k in (0, 2, 4)] for n, v in long.items()}


def luminance(rgb):
    """Relative luminance of WCAG 2."""
    parts = [c / 255 for c in rgb]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_texts_and_curves_stand_out_from_the_paper():
    """WCAG 2 AA: 4.5 to 1 for texts, 3 to 1 for curves, in each scheme."""
    assert contrast((0, 0, 0), (255, 255, 255)) == pytest.approx(21)
    css = files("dpft.report").joinpath("templates/style.css").read_text()
    light, dark, paper = css.split(":root {")[1:]
    for scheme in (light, dark, paper):
        found = colours(scheme.partition("}")[0])
        for name in {"text", "quiet", "good", "better", "worse", "trend"} & found.keys():
            assert contrast(found[name], found["paper"]) >= 4.5, name
        for name in {f"c{n}" for n in range(8)} & found.keys():
            assert contrast(found[name], found["paper"]) >= 3, name
    for scheme in (light, dark):
        shade = int(re.search(r"--hues: (\d+)%", scheme)[1]) / 100
        for hue in range(5, 226, 10):
            rgb = [255 * part for part in colorsys.hls_to_rgb(hue / 360, shade, 0.62)]
            assert contrast(rgb, colours(scheme)["paper"]) >= 3, hue
