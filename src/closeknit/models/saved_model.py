"""SavedModel: what the models of all products share. An encoder, a tokeniser, and a folder to save
them in.

The folder is at once ours (`load`), a transformers model and a sentence-transformers model. Weights
are safetensors, everything else is JSON, TOML or text; nothing is pickled.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar, Self

from torch import Tensor, nn

from closeknit import __version__
from closeknit.encoders.bert import load_bare
from closeknit.encoders.encoder import Encoder
from closeknit.encoders.heads import SHAPES
from closeknit.encoders.inference import existing_device
from closeknit.encoders.loading import load_pretrained
from closeknit.encoders.textcnn import TextCNN
from closeknit.encoders.tokenisers import PretrainedTokeniser, Tokeniser, WordTokeniser
from closeknit.errors import ModelError
from closeknit.models.folder import (
    CARD,
    FORMAT,
    MAIN,
    METRICS,
    RUN,
    WEIGHTS,
    damage_explained,
    read_facts,
    save_folder,
)
from closeknit.settings import to_toml
from closeknit.storage import read_json, read_tensors, tensor_names, write_json

VERSIONS_OF = ("torch", "transformers", "tokenizers", "accelerate", "numpy", "scikit-learn")


class SavedModel:
    """A model that can be saved in a folder and loaded from it.

    A product says what is special about its kind in the methods that end in `NotImplementedError`.
    """

    kind: ClassVar[str]  # one of models.folder.KINDS

    encoder: Encoder
    tokeniser: Tokeniser
    config: Any  # the settings of the run that made the model
    metrics: dict[str, Any]

    # -- what a product says

    @classmethod
    def read_settings(cls, tables: dict[str, Any]) -> Any:
        """The settings of the product from the tables that `closeknit.json` has."""
        raise NotImplementedError

    @classmethod
    def from_facts(
        cls, facts: dict[str, Any], settings: Any, encoder: Encoder, tokeniser: Tokeniser
    ) -> Self:
        """The model that the facts describe, its heads still without weights."""
        raise NotImplementedError

    def own_facts(self) -> dict[str, Any]:
        """What `closeknit.json` says beside what every kind of model has."""
        raise NotImplementedError

    def modules(self) -> Sequence[nn.Module]:
        """Everything that is moved to a device."""
        raise NotImplementedError

    def write_weights(self, folder: Path) -> None:
        """Write the encoder, the heads, and the files that only this kind of model has."""
        raise NotImplementedError

    def read_weights(self, folder: Path) -> None:
        """Read the heads, and the files that only this kind of model has."""
        raise NotImplementedError

    def card(self) -> Callable[[dict[str, Any], dict[str, Any]], str]:
        """The function that writes the model card from the facts and the metrics."""
        raise NotImplementedError

    # -- the folder

    def save(self, folder: str | Path) -> None:
        """Write the model folder. `closeknit.json` comes last, so a folder that has it is
        complete.
        """
        save_folder(Path(folder), self._write)

    def _write(self, folder: Path) -> None:
        self.write_weights(folder)
        self.tokeniser.save(folder)
        run = self.config.to_dict()
        (folder / RUN).write_text(to_toml(run), encoding="utf-8")
        write_json(folder / METRICS, self.metrics)
        facts = {
            "format": FORMAT,
            "kind": self.kind,
            **self.own_facts(),
            "encoder": _encoder_facts(self.encoder),
            "run": run,
            "versions": versions(),
            "files": _file_sizes(folder),
        }
        (folder / CARD).write_text(self.card()(facts, self.metrics), encoding="utf-8")
        write_json(folder / MAIN, facts)

    @classmethod
    def load(cls, folder: str | Path, *, device: str | None = None, bare: bool = False) -> Self:
        """The model of a folder. The error says what is wrong with a folder that is damaged.

        A `bare` model is loaded without transformers where possible. It loads faster, and can be
        used but neither trained nor saved.
        """
        folder = Path(folder)
        facts = read_facts(folder, cls.kind)
        with damage_explained(folder):
            settings = cls.read_settings(facts["run"])
            length = settings.encoder.max_length
            encoder, tokeniser = load_saved_encoder(folder, facts["encoder"], length, bare=bare)
            model = cls.from_facts(facts, settings, encoder, tokeniser)
        model.read_weights(folder)
        model.metrics = read_json(folder / METRICS)
        return model.to(existing_device(device))

    def to(self, device: str) -> Self:
        """Move the model to a device and switch it to inference."""
        for module in self.modules():
            module.to(device).eval()
        return self


# ---------------------------------------------------------------- the encoder of a folder


def load_saved_encoder(
    folder: Path, facts: dict[str, Any], max_length: int, *, bare: bool = False
) -> tuple[Encoder, Tokeniser]:
    """The encoder of a model folder; with `bare` it is loaded without transformers where
    possible.
    """
    if facts["model_type"] == "textcnn":
        cnn = TextCNN.from_dict(facts["textcnn"])
        fill(cnn, read_tensors(folder / WEIGHTS), folder / WEIGHTS)
        return Encoder(cnn, facts["pooling"], "textcnn"), WordTokeniser.load(folder, max_length)
    # Read the names first: a missing or damaged file is then named before transformers complains.
    names = tensor_names(folder / WEIGHTS)
    trunk, tokeniser = _load_trunk(folder, max_length, bare=bare)
    _refuse_spare_weights(trunk, names, folder / WEIGHTS)
    if trunk.config.model_type != facts["model_type"]:
        raise ModelError(
            f"{folder}: config.json says {trunk.config.model_type}, {MAIN} says {facts['model_type']}"
        )
    return Encoder(trunk, facts["pooling"], facts["name"]), tokeniser


def _load_trunk(folder: Path, max_length: int, *, bare: bool) -> tuple[Any, Tokeniser]:
    if bare:
        found = load_bare(folder, max_length)
        if found is not None:
            return found
    trunk, tokenizer = load_pretrained(folder)
    return trunk, PretrainedTokeniser(tokenizer, max_length)


def _refuse_spare_weights(trunk: Any, names: Sequence[str], path: Path) -> None:
    """Refuse weights for layers that the configuration does not have."""
    prefix = f"{trunk.base_model_prefix}."
    pooler = {"pooler.dense.weight", "pooler.dense.bias", "pooler.weight", "pooler.bias"}
    known = {*trunk.state_dict(), *pooler}
    shape = SHAPES.get(trunk.config.model_type)
    heads = tuple(name for name in (shape.dense, shape.out, shape.norm) if name) if shape else ()
    for name in names:
        if name.removeprefix(prefix) not in known and not name.startswith(heads):
            raise ModelError(
                f"{path}: the weights do not match config.json; it has no place for {name}"
            )


def fill(module: nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    """Load tensors into a module; the error names the first that does not match."""
    try:
        module.load_state_dict(tensors)
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines()[1:]]
        first = next((line for line in lines if line), str(error))
        raise ModelError(f"{path}: the weights do not match the configuration ({first})") from None


# ---------------------------------------------------------------- what closeknit.json says


def _encoder_facts(encoder: Encoder) -> dict[str, Any]:
    """What is needed to build the encoder again, beside its tensors."""
    facts: dict[str, Any] = {
        "name": encoder.name,
        "model_type": encoder.model_type,
        "pooling": encoder.pooling,
    }
    if encoder.model_type == "textcnn":
        facts["textcnn"] = encoder.config.to_dict()
    return facts


def _file_sizes(folder: Path) -> dict[str, int]:
    """The size of every file in the folder, so that a damaged file is noticed."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}


def versions() -> dict[str, str]:
    """The versions of Python, of Closeknit and of the libraries that decide its numbers."""
    found = {"python": platform.python_version(), "closeknit": __version__}
    for package in VERSIONS_OF:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found
