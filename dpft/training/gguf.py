"""A GGUF file of an exported model, for llama.cpp and what is built on it, by its own converter.

The package ``gguf`` writes the format; which tensor goes where, and which rules split a text, is
known to ``convert_hf_to_gguf.py`` of llama.cpp alone, for over a hundred architectures.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from dpft.config.errors import ConfigError, DataError

_NAMES = ("convert_hf_to_gguf.py", "convert-hf-to-gguf")


def write_gguf(folder: Path) -> Path:
    """Put ``model.gguf`` into a folder of `dpft.training.export.export`, in 16 bits.

    Raises:
        ConfigError: if there is no converter on the PATH.
        DataError: if it fails.
    """
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    file = folder / "model.gguf"
    options = [str(folder), "--outfile", str(file), "--outtype", "f16"]
    if found is None:
        raise ConfigError(
            f"{folder} is written, but no GGUF file: the converter, {_NAMES[0]} of llama.cpp, is "
            "not on the PATH, and no package of its authors has it. Type git clone "
            "https://github.com/ggml-org/llama.cpp, pip install gguf sentencepiece, and then "
            f"python llama.cpp/{_NAMES[0]} {shlex.join(options)}"
        )
    python = [sys.executable] if found.endswith(".py") else []
    command = [*python, found, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or not file.is_file():
        lines = (done.stderr or done.stdout).strip().splitlines() or ["without a word"]
        raise DataError(
            f"{folder} is written, but no GGUF file: {found} failed ({lines[-1]}); expected a "
            "model of a kind that llama.cpp runs"
        )
    return file
