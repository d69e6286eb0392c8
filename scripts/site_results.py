"""A hook of MkDocs: pages and pictures of results/ become part of the site of docs/.

In a clone, docs/ and results/ lie side by side, and their pages link to each other as files. On the
site, results/ lies below docs/: the links change with it.
"""

import re
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

_SUFFIXES = {".md", ".png"}
_LINK = re.compile(r"(\]\()((?:\.\./)+)(docs|results)/")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and pictures of results/."""
    results = Path(config.config_file_path).parent / "results"
    for path in sorted(results.rglob("*")):
        if path.suffix in _SUFFIXES:
            name = path.relative_to(results.parent).as_posix()
            file = File.generated(config, name, abs_src_path=str(path))
            file.inclusion = InclusionLevel.NOT_IN_NAV
            files.append(file)
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Turn links between docs/ and results/ into links within the site."""
    to_root = "../" * (len(PurePosixPath(page.file.src_uri).parts) - 1)

    def within(link: re.Match[str]) -> str:
        return f"{link[1]}{to_root}" + ("" if link[3] == "docs" else "results/")

    return _LINK.sub(within, markdown)
