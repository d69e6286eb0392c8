"""README, docs/ and results/: links lead somewhere, and examples run."""

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CHANGELOG.md", *DOCS.rglob("*.md"), *ROOT.glob("results/**/*.md")]
)
# Where pages of docs/ are named: messages, docstrings and comments.
TEXTS = sorted(
    file
    for folder in ("conf", "dpft", "scripts", "tests")
    for file in (ROOT / folder).rglob("*")
    if file.suffix in {".py", ".yaml", ".md", ".sh"}
)
PAGE = re.compile(r"\bdocs/[\w/-]+(?:\.md)?")
FILE = re.compile(r"\b(?:conf|dpft|scripts|tests)/[a-z0-9_/]+\.(?:py|yaml|sh)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """As MkDocs and GitHub make them of headings."""
    headings = re.findall(r"^#+ +(.+?) *$", prose(page), re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)|`", r"\1", heading).lower() for heading in headings]
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", text).strip()) for text in plain}


def test_links_of_all_pages_resolve_and_tables_end():
    broken = []
    for page in PAGES:
        for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            there = target.exists() and (not anchor or anchor in anchors(target))
            if not there and not re.match(r"[a-z]+:", link):
                broken.append((page.name, link))
        # Without a blank line behind it, a sentence is read as the row of a table.
        rows = re.findall(r"^\|.*\n(?!\||\s*$|<!--)(.+)$", prose(page), re.MULTILINE)
        broken += [(page.name, row) for row in rows]
    assert broken == []


def test_files_that_pages_and_code_name_exist():
    texts = (*TEXTS, ROOT / "pyproject.toml", ROOT / "Makefile", ROOT / "README.md")
    pages = [*DOCS.rglob("*.md"), ROOT / "README.md"]
    named = {
        *((file, page) for file in texts for page in PAGE.findall(file.read_text("utf-8"))),
        *((page, file) for page in pages for file in FILE.findall(page.read_text("utf-8"))),
    }
    assert {(str(text), name) for text, name in named if not (ROOT / name).exists()} == set()


def test_every_page_is_in_the_navigation():
    def pages(entry):
        if isinstance(entry, str):
            return [entry]
        parts = entry if isinstance(entry, list) else entry.values()
        return [page for part in parts for page in pages(part)]

    nav = pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    present = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert present <= set(nav)
    assert len(nav) == len(set(nav))


def test_the_training_loop_of_the_page_runs(capsys):
    text = (DOCS / "how-to/training_loop.md").read_text(encoding="utf-8")
    examples = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(examples) == 2
    for example in examples:
        exec(compile(example, "training_loop.md", "exec"), {"__name__": "example"})
    assert "epsilon 3.00 at delta 0.0001" in capsys.readouterr().out
