"""Human studies: who sees what, what is hidden, what is read back, and the intervals."""

import csv
import json
import re
import shutil
import subprocess
from collections import Counter

import pytest
from typer.testing import CliRunner

from dpft.cli.app import app
from dpft.config.errors import ConfigError, DataError
from dpft.reproduce.study import (
    REFERENCE,
    System,
    design,
    read_key,
    read_ratings,
    summarise,
    write_study,
)
from dpft.reproduce.study.sheet import cell
from dpft.reproduce.study.statistics import summary
from dpft.runs import RunDirectory, read_record, write_record
from dpft.tasks.objectives.base import Prediction
from dpft.training.predictions import write_predictions
from tests.runs.example import example_record, without_privacy


def system(name, count=8, reply="{name} answers {i}", source="context {i}"):
    texts = [(source.format(i=i), reply.format(name=name, i=i)) for i in range(count)]
    predictions = [Prediction(*text, (f"human {i}",)) for i, text in enumerate(texts)]
    return System(name, predictions)


def two(count=30, **options):
    return design([system("alpha", count), system("beta", count)], **options)


def small(**changes):
    return two(8, **{"items": 6, "raters": 4, "per_rater": 3} | changes)


@pytest.fixture
def made(tmp_path):
    write_study(small(), tmp_path)
    return tmp_path


def rows_of(folder):
    with (folder / "sheet.csv").open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def filled(folder, rating, name="filled.csv", delimiter=",", rows=None):
    """The sheet, or these rows of it, with ``rating(row)`` in every row."""
    rows = [row | {"rating": rating(row)} for row in rows or rows_of(folder)]
    path = folder / name
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)
    return path


# --- who sees what --------------------------------------------------------------------------------


def test_every_rater_sees_every_system_once_in_every_context_given():
    made = small()
    for codes in made.raters:
        items = [made.items[code] for code in codes]
        seen = Counter((item.entry, name) for item in items for name in item.systems)
        entries = {item.entry for item in items}
        assert len(entries) == 3
        names = ("alpha", "beta", "reference")
        assert seen == {(entry, name): 1 for entry in entries for name in names}
        # Replies to one context lie together.
        runs = [item.entry for item in items]
        assert runs == sorted(runs, key=runs.index)


@pytest.mark.parametrize(("items", "raters", "per_rater"), [(6, 4, 3), (7, 5, 3), (20, 20, 5)])
def test_contexts_are_given_out_equally_often(items, raters, per_rater):
    made = two(items=items, raters=raters, per_rater=per_rater)
    given = Counter(
        entry for codes in made.raters for entry in {made.items[code].entry for code in codes}
    )
    assert len(given) == items
    assert max(given.values()) - min(given.values()) <= 1


def test_the_order_of_the_systems_is_shuffled():
    made = two(seed=3)
    orders = Counter(
        tuple(made.items[code].systems[0] for code in codes[start : start + 3])
        for codes in made.raters
        for start in range(0, len(codes), 3)
    )
    assert len(orders) == 6  # all orders of three systems occur in a hundred entries
    assert made == two(seed=3)


def test_equal_replies_are_shown_once_and_count_for_all_who_wrote_them():
    systems = [system("alpha", 1, "yes"), system("beta", 1, " yes\n"), system("gamma", 1, "no")]
    made = design(systems, items=1, raters=1, per_rater=1)
    assert sorted(item.systems for item in made.items.values()) == [
        ("alpha", "beta"),
        ("gamma",),
        ("reference",),
    ]
    assert len(made.raters[0]) == 3


def test_the_run_that_answers_something_else_is_named():
    usual = [system("alpha"), system("beta")]
    with pytest.raises(DataError, match=r"odd answers .* than alpha: line 1 has another source"):
        design([system("odd", source="other {i}"), *usual], items=2, raters=2)
    with pytest.raises(DataError, match="odd has 7 predictions, alpha has 8"):
        design([*usual, system("odd", 7)], items=2, raters=2)
    other = system("odd")
    other.predictions[2] = Prediction("context 2", "x", ("another",))
    with pytest.raises(DataError, match=r"odd .*: line 3 has other references"):
        design([*usual, other], items=2, raters=2)
    with pytest.raises(DataError, match="have no source"):
        design([system("alpha", source="")], items=2, raters=2, per_rater=1)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"items": 0}, "--items is 0"),
        ({"raters": -1}, "--raters is -1"),
        ({"items": 9}, "--items is 9, but the runs answer 8 instances"),
        ({"per_rater": 7}, "--per-rater is 7 for --items 6"),
        ({"raters": 1}, "1 raters with 3 contexts each rate 3 of 6"),
    ],
)
def test_impossible_numbers_are_refused(numbers, message):
    with pytest.raises(ConfigError, match=message):
        small(**numbers)


@pytest.mark.parametrize("names", [("alpha", "alpha"), ("alpha", "reference")])
def test_names_that_clash_are_refused(names):
    with pytest.raises(ConfigError, match="two systems are called"):
        design([system(name) for name in names], items=2, raters=2, per_rater=1)


# --- what raters get ------------------------------------------------------------------------------


def test_sheet_and_form_hide_who_wrote_what(made):
    key = json.loads((made / "key.json").read_text())
    assert {name for item in key["items"].values() for name in item["systems"]} == {
        "alpha",
        "beta",
        "reference",
    }
    form = (made / "form.html").read_text()
    for text in ((made / "sheet.csv").read_text(), form):
        # The replies name their systems here: nothing else may.
        assert not re.search(r"alpha(?! answers)|beta(?! answers)|reference", text)
    assert not re.search(r"https?:|src=|@import|url\(", form)
    assert {row["rating"] for row in rows_of(made)} == {""}
    assert len(rows_of(made)) == 4 * 3 * 3


def test_html_in_texts_stays_text(tmp_path):
    nasty = "</script><script>alert(1)</script><!-- &amp;"
    write_study(design([system("alpha", 1, nasty)], items=1, raters=1, per_rater=1), tmp_path)
    form = (tmp_path / "form.html").read_text()
    assert "alert" in form
    assert "<script>alert" not in form
    data = re.search(r'<script type="application/json" id="study">(.*?)</script>', form, re.S)
    replies = [item["reply"] for item in json.loads(data[1])["items"].values()]
    assert sorted(replies) == [nasty, "human 0"]


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\tx", "\rx"])
def test_what_a_spreadsheet_would_run_is_prefixed(text):
    assert cell(text) == "'" + text
    assert cell("a" + text) == "a" + text


def test_formulas_are_prefixed_in_the_sheet_alone(tmp_path):
    write_study(design([system("alpha", 1, "=1+1")], items=1, raters=1, per_rater=1), tmp_path)
    assert {row["reply"] for row in rows_of(tmp_path)} == {"'=1+1", "human 0"}
    assert '"=1+1"' in (tmp_path / "form.html").read_text()


@pytest.mark.parametrize("name", ["key.json", "sheet.csv", "form.html"])
def test_a_study_is_never_overwritten(made, tmp_path, name):
    """Not its key, nor a sheet that was filled in after the key was put away."""
    folder = tmp_path / "another"
    folder.mkdir()
    shutil.copy(made / name, folder / name)
    with pytest.raises(ConfigError, match=rf"{name} exists"):
        write_study(small(), folder)


def test_on_a_full_disk_nothing_is_left(tmp_path, monkeypatch):
    written = []

    def full(path, data, mode=0o644):
        if written:
            raise OSError(28, "No space left on device")
        path.write_text("x")
        written.append(path)

    monkeypatch.setattr("dpft.reproduce.study.sheet.write_atomic", full)
    with pytest.raises(DataError, match="cannot write to"):
        write_study(small(), tmp_path / "study")
    assert list((tmp_path / "study").iterdir()) == []


def test_codes_cannot_be_drawn_again_from_what_raters_see():
    """Neither without the seed, nor with it and other predictions than those that are shown."""
    assert set(two().items) != set(two().items)
    seeded = two(seed=3)
    again = design([system("alpha", 30), system("beta", 30, "{name} replies {i}")], seed=3)
    assert set(seeded.items).isdisjoint(again.items)


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_what_the_form_saves_is_read(made):
    form = (made / "form.html").read_text()
    data = re.search(r'id="study">(.*?)</script>', form, re.S)[1]
    pure = re.search(r'<script id="pure">(.*?)</script>', form, re.S)[1]
    script = (
        f"{pure}\nconst study = {data};\n"
        "const entries = entriesOf(study, 2);\n"
        "const ratings = {};\n"
        "entries.forEach((e, i) => e.codes.forEach((code) => { ratings[code] = i + 3; }));\n"
        "process.stdout.write(linesOf(study, 2, ratings));"
    )
    lines = subprocess.run(["node", "-e", script], capture_output=True, text=True, check=True)
    (made / "two.csv").write_text(lines.stdout, newline="")
    ratings = read_ratings([made / "two.csv"], read_key(made / "key.json"))
    assert sorted(rating.value for rating in ratings.given) == [3, 3, 3, 4, 4, 4, 5, 5, 5]
    assert ratings.missing == {"1": 9, "3": 9, "4": 9}


# --- what is read ---------------------------------------------------------------------------------


def opinion(row):
    return {"a": "2", "b": "4", "h": "5"}[row["reply"][0]]


@pytest.mark.parametrize(
    ("delimiter", "first"), [(",", ""), (";", ""), ("\t", ""), (";", "sep=;\n")]
)
def test_a_filled_sheet_gives_the_means_of_each_system(made, delimiter, first):
    key = read_key(made / "key.json")
    sheet = filled(made, opinion, delimiter=delimiter)
    sheet.write_text(first + sheet.read_text())
    ratings = read_ratings([sheet], key)
    assert ratings.missing == {}
    assert [(s.system, s.n, s.raters, s.mean) for s in summarise(ratings.given, key)] == [
        ("alpha", 12, 4, 2.0),
        ("beta", 12, 4, 4.0),
        ("reference", 12, 4, 5.0),
    ]


def test_a_sheet_may_come_in_parts_and_gaps_are_counted_by_rater(made):
    key = read_key(made / "key.json")
    one = filled(made, lambda r: opinion(r) if r["rater"] == "1" else "", "one.csv")
    two = filled(made, lambda r: "4.0" if r["rater"] == "2" else " ", "two.csv")
    ratings = read_ratings([one, two], key)
    assert len(ratings.given) == 18
    assert ratings.missing == {"3": 9, "4": 9}


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("rating", "6", "got rating '6'; expected a whole number from 1 to 5"),
        ("rating", "0", "got rating '0'"),
        ("rating", "2.5", r"got rating '2\.5'"),
        ("rating", "good", "got rating 'good'"),
        ("rating", "nan", "got rating 'nan'"),
        ("item", "qqqqqq", "no item has the code 'qqqqqq'"),
        ("rater", "5", "rater '5' was not given item"),
        ("study", "s0", "got study 's0'; expected 's"),
    ],
)
def test_a_bad_row_is_refused_with_file_and_line(made, column, value, message):
    rows = [row | {"rating": "3"} for row in rows_of(made)]
    rows[4][column] = value
    path = filled(made, lambda row: row["rating"], "bad.csv", rows=rows)
    with pytest.raises(DataError, match=rf"bad\.csv, line 6: {message}"):
        read_ratings([path], read_key(made / "key.json"))


def test_a_rating_given_twice_is_refused_with_both_places(made):
    files = [filled(made, opinion, name) for name in ("a.csv", "b.csv")]
    with pytest.raises(DataError, match=r"b\.csv, line 2: .* again, after .*a\.csv, line 2"):
        read_ratings(files, read_key(made / "key.json"))


def test_files_that_are_no_sheets_are_refused(made):
    key = read_key(made / "key.json")
    sheet = filled(made, opinion)
    whole = sheet.read_text()
    for old, new, message in (
        ("study", "survey", "has the columns survey, rater"),
        ("rating", "rating,rating", "has the columns .*, rating, rating"),
        ("alpha", "alpha,alpha", r"line \d+: got more cells than columns"),
    ):
        sheet.write_text(whole.replace(old, new, 1))
        with pytest.raises(DataError, match=message):
            read_ratings([sheet], key)
    for name, message in (("sheet.csv", "no rating in"), ("none.csv", "cannot read")):
        with pytest.raises(DataError, match=message):
            read_ratings([made / name], key)
    with pytest.raises(DataError, match="is not a key"):
        read_key(made / "form.html")


# --- statistics -----------------------------------------------------------------------------------


def test_intervals_by_hand():
    one = summary("x", {"a": [1, 2, 3, 4, 5]})
    assert (one.n, one.raters, one.mean) == (5, 1, 3.0)
    assert one.deviation == pytest.approx(2.5**0.5)
    half = 1.96 * (2.5 / 5) ** 0.5
    assert one.interval == pytest.approx((3 - half, 3 + half))
    assert one.clustered is None

    # Two raters who each repeat themselves: cluster sums of deviations are -2 and 2, hence the
    # variance of the mean is 2 * 8 / 16 = 1, and Student's quantile with one degree is 12.7062.
    two = summary("x", {"a": [1, 1], "b": [3, 3]})
    assert two.clustered == pytest.approx((2 - 12.7062, 2 + 12.7062), abs=1e-4)
    half = 1.96 * (4 / 3) ** 0.5 / 2
    assert two.interval == pytest.approx((2 - half, 2 + half))


def test_with_one_rating_a_rater_clusters_change_the_quantile_alone():
    values = [1, 4, 2, 5, 5, 3, 3, 2]
    one = summary("x", {str(i): [value] for i, value in enumerate(values)})
    ratio = (one.clustered[1] - one.mean) / (one.interval[1] - one.mean)
    assert ratio == pytest.approx(2.3646 / 1.96, abs=1e-4)  # Student's with 7 degrees


def test_too_few_ratings_have_no_interval():
    assert summary("x", {"a": [4]}).interval is None
    assert summary("x", {}).mean is None


def test_a_hundred_ratings_give_intervals_as_wide_as_the_papers():
    """Li et al. 2022, Table 3, 20 raters with 5 entries: 2.82 in [2.56, 3.09]."""
    values = [1] * 22 + [2] * 21 + [3] * 23 + [4] * 21 + [5] * 13
    one = summary("x", {str(i): values[i::20] for i in range(20)})
    assert (one.n, one.mean) == (100, pytest.approx(2.82))
    assert one.interval == pytest.approx((2.56, 3.09), abs=0.01)


# --- the commands ---------------------------------------------------------------------------------


def invoke(*arguments):
    return CliRunner().invoke(app, ["study", *map(str, arguments)])


def run_folder(path, name, reply, private):
    """A finished run that answered six times the same."""
    with RunDirectory.open(path / name, {"name": name}, f"name: {name}\n") as run:
        predictions = [Prediction(f"hello {i}", reply, (f"fine {i}",)) for i in range(6)]
        write_predictions(run.generations("dev"), predictions)
        record = example_record(run.config_hash) | {"labels": ["bundled tiny model"]}
        record["generations"] = {"dev": "generations/dev.jsonl"}
        if not private:
            record |= {"mechanism": None, "privacy": without_privacy()}
        write_record(run, record)
        run.mark_done()
    return path / name


@pytest.fixture
def runs(tmp_path):
    return [run_folder(tmp_path, "one", "a", True), run_folder(tmp_path, "two", "b", False)]


@pytest.fixture
def out(tmp_path, runs):
    """A study of these runs, made on the command line."""
    folder = tmp_path / "study"
    numbers = ("--items", 4, "--raters", 4, "--per-rater", 2)
    result = invoke("make", *runs, "--out", folder, *numbers)
    assert result.exit_code == 0, result.output
    assert "4 contexts, 3 systems, 24 ratings" in result.output
    return folder


def test_from_runs_to_a_table(out, runs):
    done = filled(out, lambda row: {"a": "2", "b": "3", "f": "5"}[row["reply"][0]])
    result = invoke("read", done, "--key", out / "key.json", "--json")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert answer == json.loads((out / "study.json").read_text())
    assert {name: one["mean"] for name, one in answer["systems"].items()} == {
        "one": 2.0,
        "two": 3.0,
        "reference": 5.0,
    }
    assert answer["systems"]["one"]["interval"] == [2.0, 2.0]
    assert (out / "study.png").stat().st_size > 0
    assert (out / "study.svg").read_text().startswith("<?xml")

    shown = " ".join(invoke("read", done, "--key", out / "key.json").output.split())
    private = read_record(runs[0])["privacy"]
    told = (private["statement"], *private["caveats"], "no privacy guarantee")
    for said in (*told, "bundled tiny model", "2.00"):
        assert said in shown


def test_missing_ratings_are_an_error_unless_allowed(out):
    part = filled(out, lambda row: "3" if row["rater"] == "1" else "")
    result = invoke("read", part, "--key", out / "key.json")
    assert result.exit_code == 2
    assert "18 ratings are missing (rater 2: 6, rater 3: 6, rater 4: 6)" in result.output
    result = invoke("read", part, "--key", out / "key.json", "--partial")
    assert result.exit_code == 0
    assert "18 missing" in result.output


def test_runs_without_these_generations_are_told_what_there_is(tmp_path, runs):
    result = invoke("make", *runs, "--out", tmp_path / "s", "--split", "test")
    assert result.exit_code == 2
    assert "has no generations 'test'; it has dev" in result.output


def test_predictions_files_of_any_program_take_part(tmp_path, runs):
    file = tmp_path / "theirs.jsonl"
    text = (runs[1] / "generations/dev.jsonl").read_text()
    file.write_text(text.replace('"b"', '"theirs"'))
    out = tmp_path / "study"
    numbers = ("--items", 2, "--raters", 2, "--per-rater", 1)
    assert invoke("make", runs[0], file, "--out", out, *numbers).exit_code == 0
    assert list(read_key(out / "key.json").systems) == ["one", "theirs", REFERENCE]
