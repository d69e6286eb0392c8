"""Texts of several runs on the terminal."""

from dpft.report.written import print_written
from tests.report.pages.example import a_run, record, write_lines


def test_runs_are_printed_prompt_by_prompt(tmp_path, capsys):
    runs = []
    for name, order in (("one", 1), ("two", -1)):
        path = a_run(tmp_path / name)
        lines = [
            {
                "source": f"ask {n}",
                "prediction": f"{name} says {n}",
                "references": [f"ref {n}", "b"],
            }
            for n in range(4)[::order]
        ]
        write_lines(path / "generations/test.jsonl", lines)
        runs.append((path, record()))
    print_written(runs)
    printed = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert [line for line in printed if line] == [
        *("asked ask 0", "one one says 0", "two two says 0", "reference ref 0"),
        *("asked ask 2", "one one says 2", "two two says 2", "reference ref 2"),
    ]
