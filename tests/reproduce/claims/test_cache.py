"""Computed numbers are kept for the same code, and computed anew for any other."""

import pytest

from dpft.reproduce.claims import cache


@pytest.fixture
def calls(tmp_path, monkeypatch):
    monkeypatch.setenv("DPFT_CACHE_DIR", str(tmp_path / "cache"))
    calls = []

    def third(x):
        calls.append(x)
        return {"value": x / 3}

    monkeypatch.setattr(cache, "FUNCTIONS", {"third": third})
    return calls


def test_a_number_is_computed_once_for_each_argument_and_kept_exactly(calls):
    for x in (1, 2, 1, 2):
        assert cache.numbers_of("third", {"x": x}) == {"value": x / 3}
    assert calls == [1, 2]


def test_other_code_computes_anew(calls, monkeypatch):
    cache.numbers_of("third", {"x": 1})
    monkeypatch.setattr(cache, "_code", lambda: "other")
    cache.numbers_of("third", {"x": 1})
    assert calls == [1, 1]


@pytest.mark.parametrize("pattern", cache._SOURCES)
def test_the_code_is_that_of_every_source(tmp_path, monkeypatch, pattern):
    before = cache._code.__wrapped__()
    changed = tmp_path / pattern.replace("**/*", "a/changed")
    changed.parent.mkdir(parents=True)
    changed.write_text("1")
    monkeypatch.setattr(cache.dpft, "__file__", str(tmp_path / "__init__.py"))
    alone = cache._code.__wrapped__()
    changed.write_text("2")
    assert len({before, alone, cache._code.__wrapped__()}) == 3


@pytest.mark.parametrize("content", ["{", "[]", "[" * 100_000, "{}"])
def test_a_damaged_file_is_no_cache(calls, tmp_path, content):
    cache.numbers_of("third", {"x": 1})
    (tmp_path / "cache" / "claims.json").write_text(content)
    assert cache.numbers_of("third", {"x": 1}) == {"value": 1 / 3}
    assert calls == [1, 1]


def test_what_cannot_be_written_is_computed(calls, tmp_path):
    (tmp_path / "cache").write_text("a file")
    assert cache.numbers_of("third", {"x": 1}) == {"value": 1 / 3}


def test_where_nobody_has_a_home_all_is_computed(calls, monkeypatch):
    monkeypatch.delenv("DPFT_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr("pathlib.Path.home", homeless)
    assert cache.numbers_of("third", {"x": 1}) == {"value": 1 / 3}
