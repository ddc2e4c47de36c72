"""Model: encoder, heads, tokeniser and labels together, and the folder it is saved in.

The folder is at once ours (`TextClassifier.load`), a transformers model (`AutoModel`, and a sequence
classifier where the architecture has one) and a sentence-transformers model. Nothing in it is pickled.
"""

from __future__ import annotations

import contextlib
import copy
import platform
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from . import __version__, checkpoint
from .bare import load_bare
from .card import model_card
from .checkpoint import no_space_explained, read_json, read_tensors, tensor_names, write_json, write_tensors
from .config import RunConfig, to_toml
from .data import Examples
from .encoder import Encoder
from .encoder_loading import load_pretrained, merged_trunk
from .errors import ConfigError, DataError, MissingExtra, ModelError, did_you_mean
from .evaluation import Floats, outputs
from .heads import SHAPES, Classifier, NearestCentroid, NearestRows, build_heads
from .metrics import classification_scores
from .model_files import (
    CARD,
    HEADS,
    LABEL_DISTANCE,
    MAIN,
    METRICS,
    OBJECTIVE,
    RUN,
    WEIGHTS,
    is_plain,
    move_into,
    remove_listed,
)
from .plots import distance_map
from .textcnn import TextCNN
from .tokenisers import PretrainedTokeniser, Tokeniser, WordTokeniser
from .tokens import Tokens

FORMAT = 1
UNFINISHED = "unfinished-model"  # a model that is being written
STATES, LOCK, IDENTITY = "checkpoints", "lock", "run.json"  # of a run that is not finished
TO_LOOK_AT = (".csv", ".png", ".md", ".html")  # files that loading a model does not need
ALONE = "alone"  # models of single tasks, beside the one of all


@dataclass
class Model:
    """A text classifier that can predict, embed, score itself, and be saved."""

    encoder: Encoder
    heads: nn.ModuleDict
    tokeniser: Tokeniser
    labels: list[str]
    config: RunConfig
    paired: bool = False
    label_type: str = "str"  # what the labels were before they became names
    objective: dict[str, Tensor] = field(default_factory=dict)  # what the objective learnt
    metrics: dict[str, Any] = field(default_factory=dict)

    def tokens(self, examples: Examples) -> Tokens:
        self._check_paired(examples)
        return self.tokeniser(examples)

    def check(self, examples: Examples) -> None:
        """Refuse examples that this model could not be scored on."""
        label_numbers(examples, self.labels)
        self._check_paired(examples)

    def _check_paired(self, examples: Examples) -> None:
        if self.paired != (examples.pairs is not None):
            kinds = ("single texts", "pairs of texts")
            raise DataError(
                f"{examples.name} holds {kinds[not self.paired]}; this model takes {kinds[self.paired]}"
            )

    def outputs(self, examples: Examples) -> tuple[Floats, Floats]:
        """(logits (R, C), pooled vectors (R, H))."""
        return outputs(self.encoder, self.heads, self.tokens(examples))

    def evaluate(self, examples: Examples) -> dict[str, Any]:
        """Scores on labelled examples; a label the model does not know is refused."""
        expected = label_numbers(examples, self.labels)
        logits, _ = self.outputs(examples)
        return classification_scores(expected, logits.argmax(axis=1), self.labels)

    def save(self, folder: str | Path) -> None:
        """Write the model folder; `closeknit.json` comes last, so a folder that has it is whole."""
        save_folder(Path(folder), self._write)

    def _write(self, folder: Path) -> None:
        write_encoder(folder, self.encoder, self.config.encoder.max_length, classifier=self)
        self.tokeniser.save(folder)
        write_tensors(folder / HEADS, self.heads.state_dict())
        if self.objective:
            write_tensors(folder / OBJECTIVE, self.objective)
            self._draw_distances(folder)
        own = {
            "labels": self.labels,
            "label_type": self.label_type,
            "paired": self.paired,
            "heads": {name: _head_facts(head) for name, head in self.heads.items()},
        }
        describe_folder(
            folder, "text_classifier", self.encoder, self.config.to_dict(), self.metrics, model_card, own
        )

    def _draw_distances(self, folder: Path) -> None:
        """A picture of learnt label distances, where there are any and pictures can be drawn."""
        for key, value in self.objective.items():
            if key.endswith(".distance"):
                with contextlib.suppress(MissingExtra):
                    distance_map(folder / LABEL_DISTANCE, value.numpy(), self.labels)

    @classmethod
    def load(cls, folder: str | Path, *, device: str | None = None, bare: bool = False) -> Model:
        """The model of a folder; says what is wrong with one that is damaged or does not fit together.

        A `bare` one is there sooner, and can be used but neither trained nor saved.
        """
        folder = Path(folder)
        facts = read_facts(folder)
        with damage_explained(folder):
            labels, kind, paired, label_type = (
                facts["labels"],
                facts["encoder"],
                facts["paired"],
                facts["label_type"],
            )
            if not isinstance(labels, list) or len(set(labels)) != len(labels):
                raise ModelError(f"{folder / MAIN} is damaged: labels is not a list of different names")
            config = RunConfig.from_dict(facts["run"])
            encoder, tokeniser = load_saved_encoder(folder, kind, config.encoder.max_length, bare=bare)
            heads = _build_heads(encoder, len(labels), facts["heads"])
        fill(heads, read_tensors(folder / HEADS), folder / HEADS)
        objective = read_tensors(folder / OBJECTIVE) if (folder / OBJECTIVE).exists() else {}
        metrics = read_json(folder / METRICS)
        model = cls(
            encoder,
            heads,
            tokeniser,
            labels,
            config,
            paired,
            label_type,
            objective,
            metrics,
        )
        return model.to(existing_device(device))

    def to(self, device: str) -> Model:
        self.encoder.to(device).eval()
        self.heads.to(device).eval()
        return self


_NEAREST: dict[str, Any] = {"NearestCentroid": NearestCentroid, "NearestRows": NearestRows}


def _head_facts(head: nn.Module) -> dict[str, Any]:
    """What is needed to build a head again, beside its tensors."""
    facts: dict[str, Any] = {"kind": type(head).__name__}
    return facts | ({"rows": len(head.rows)} if isinstance(head, NearestRows) else {})


def _build_heads(encoder: Encoder, classes: int, facts: dict[str, Any]) -> nn.ModuleDict:
    heads = build_heads(encoder, classes, facts)
    kind = facts["logits"]["kind"]
    if kind in _NEAREST:
        size = {key: value for key, value in facts["logits"].items() if key != "kind"}
        heads["logits"] = _NEAREST[kind](encoder.dim, classes, **size)
    return heads


def best_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def existing_device(asked: str | None) -> str:
    device = asked or best_device()
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ModelError(f"device {device} was asked for, but there is no GPU here")
    return device


def is_ours(folder: Path) -> bool:
    """Whether a folder is that of a model, of a save that was killed, or of a run: not any that has `checkpoints`."""
    marks = (MAIN, UNFINISHED, f"{STATES}/{LOCK}", f"{STATES}/{IDENTITY}")
    alone = folder / ALONE
    return any((folder / mark).exists() for mark in marks) or (
        alone.is_dir() and any(map(is_ours, alone.iterdir()))
    )


def save_folder(folder: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a folder beside, and then put its files into their place, `closeknit.json` last."""
    if folder.exists() and not folder.is_dir():
        raise ModelError(f"{folder} is a file; name a folder")
    held = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if held and not is_ours(folder):
        raise ModelError(f"{folder} holds {min(held)} and is no model folder; it is left alone")
    folder.mkdir(parents=True, exist_ok=True)
    old = _written_before(folder)
    unfinished = folder / UNFINISHED
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    with no_space_explained(folder):
        try:
            write(unfinished)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
        (folder / MAIN).unlink(missing_ok=True)
        remove_listed(folder, old)  # nothing of another model may stay beside the new one
        move_into(unfinished, folder)


def remove_model(folder: Path) -> None:
    """Remove a saved model, or the run that would have made it; files of any other origin stay."""
    if folder.is_symlink() or not folder.is_dir() or not is_ours(folder):
        return
    remove_listed(folder, _written_before(folder))
    if not (folder / STATES).is_symlink():
        checkpoint.clear(folder / STATES, (LOCK, IDENTITY))
    with contextlib.suppress(OSError):
        folder.rmdir()


def describe_folder(
    folder: Path,
    kind: str,
    encoder: Encoder,
    run: dict[str, dict[str, Any]],
    metrics: dict[str, Any],
    card: Callable[[dict[str, Any], dict[str, Any]], str],
    own: dict[str, Any],
) -> None:
    """What a model folder says of itself, `closeknit.json` last; `own` are the facts that models of its kind have."""
    (folder / RUN).write_text(to_toml(run), encoding="utf-8")
    write_json(folder / METRICS, metrics)
    facts = {
        "format": FORMAT,
        "kind": kind,
        **own,
        "encoder": _encoder_facts(encoder),
        "run": run,
        "versions": versions(),
        "files": _file_sizes(folder),
    }
    (folder / "README.md").write_text(card(facts, metrics), encoding="utf-8")
    write_json(folder / MAIN, facts)


def _file_sizes(folder: Path) -> dict[str, int]:
    """What a model folder holds, so that a damaged file is noticed."""
    return {
        p.relative_to(folder).as_posix(): p.stat().st_size for p in sorted(folder.rglob("*")) if p.is_file()
    }


def label_numbers(examples: Examples, labels: Sequence[str]) -> npt.NDArray[np.int64]:
    """The class number of each row (R,)."""
    number = {label: i for i, label in enumerate(labels)}
    unknown = sorted(set(examples.required_labels) - set(number))
    if unknown:
        raise DataError(
            f"{examples.name}: the model does not know the label {unknown[0]}{did_you_mean(unknown[0], labels)}"
            + (f" ({len(unknown)} unknown labels in all)" if len(unknown) > 1 else "")
        )
    return np.array([number[label] for label in examples.required_labels], dtype=np.int64)


def versions() -> dict[str, str]:
    """What this was made with."""
    found = {"python": platform.python_version(), "closeknit": __version__}
    for package in (
        "torch",
        "transformers",
        "tokenizers",
        "accelerate",
        "numpy",
        "scikit-learn",
    ):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


KINDS = {
    "text_classifier": "a text classifier",
    "sentence_encoder": "a sentence encoder",
    "multi_task": "a model of several tasks",
}


def read_facts(folder: Path, kind: str | None = "text_classifier") -> dict[str, Any]:
    """What a model folder says of itself; refuses one that is damaged, or of another kind than expected."""
    if not folder.is_dir():
        raise ModelError(
            f"{folder} does not exist" if not folder.exists() else f"{folder} is a file, not a model folder"
        )
    if not (folder / MAIN).exists():
        if (folder / STATES).is_dir():
            raise ModelError(
                f"the training run in {folder} is not finished; continue it with the command that began it and --resume"
            )
        raise ModelError(f"{folder} is no model folder: {MAIN} is missing")
    facts = read_json(folder / MAIN)
    if not isinstance(facts, dict) or facts.get("kind") not in KINDS:
        raise ModelError(f"{folder / MAIN} does not describe a model of Closeknit")
    if kind is not None and facts["kind"] != kind:
        raise ModelError(f"{folder} holds {KINDS[facts['kind']]}, not {KINDS[kind]}")
    if facts.get("format") != FORMAT:
        raise ModelError(
            f"{folder} has format {facts.get('format')}; this version of Closeknit reads format {FORMAT}"
        )
    files = facts.get("files", {})
    if not isinstance(files, dict):
        raise ModelError(f"{folder / MAIN} is damaged: its list of files is not a table of sizes")
    for name, size in files.items():
        if not is_plain(name):  # a name from a file is never a path
            raise ModelError(
                f"{folder / MAIN} is damaged: its list of files has the entry {name!r}, "
                "which no saved model has"
            )
        path = folder / name
        if path.suffix in TO_LOOK_AT:
            continue
        if not path.exists():
            raise ModelError(f"{path} is missing")
        if path.stat().st_size != size and path.suffix != ".toml":
            raise ModelError(f"{path} is damaged or cut short: {path.stat().st_size} bytes instead of {size}")
    return facts


@contextlib.contextmanager
def damage_explained(folder: Path) -> Iterator[None]:
    """What cannot be built from the facts of a folder, as one sentence."""
    try:
        yield
    except (ConfigError, DataError) as error:
        raise ModelError(f"{folder / MAIN}: {error}") from None
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ModelError(f"{folder / MAIN} is damaged ({type(error).__name__}: {error})") from None


def load_saved_encoder(
    folder: Path, kind: dict[str, Any], max_length: int, *, bare: bool = False
) -> tuple[Encoder, Tokeniser]:
    """The encoder of a model folder; with `bare` without transformers, where its kind is one that needs none."""
    if kind["model_type"] == "textcnn":
        cnn = TextCNN.from_dict(kind["textcnn"])
        fill(cnn, read_tensors(folder / WEIGHTS), folder / WEIGHTS)
        return Encoder(cnn, kind["pooling"], "textcnn"), WordTokeniser.load(folder, max_length)
    names = tensor_names(folder / WEIGHTS)  # a missing or damaged file is named before transformers is asked
    trunk: Any
    tokeniser: Tokeniser
    if bare and (found := load_bare(folder, max_length)) is not None:
        trunk, tokeniser = found
    else:
        trunk, tokenizer = load_pretrained(folder)
        tokeniser = PretrainedTokeniser(tokenizer, max_length)
    _check_no_more(trunk, names, folder / WEIGHTS)
    if trunk.config.model_type != kind["model_type"]:
        raise ModelError(
            f"{folder}: config.json says {trunk.config.model_type}, {MAIN} says {kind['model_type']}"
        )
    return Encoder(trunk, kind["pooling"], kind["name"]), tokeniser


def _check_no_more(trunk: Any, names: Sequence[str], path: Path) -> None:
    """Refuse weights for layers that the configuration does not have."""
    prefix = f"{trunk.base_model_prefix}."
    known = {*trunk.state_dict(), "pooler.dense.weight", "pooler.dense.bias", "pooler.weight", "pooler.bias"}
    shape = SHAPES.get(trunk.config.model_type)
    heads = tuple(name for name in (shape.dense, shape.out, shape.norm) if name) if shape else ()
    spare = [key for key in names if key.removeprefix(prefix) not in known and not key.startswith(heads)]
    if spare:
        raise ModelError(f"{path}: the weights do not match config.json; it has no place for {spare[0]}")


def _written_before(folder: Path) -> list[object]:
    """The entries of the list of files in the model folder; nothing has checked them."""
    try:
        files = read_facts(folder, None).get("files", {})
    except ModelError:
        return []
    return [*files, CARD]


def fill(module: nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    """Load tensors into a module; what does not match is named."""
    try:
        module.load_state_dict(tensors)
    except RuntimeError as error:
        first = next((line.strip() for line in str(error).splitlines()[1:] if line.strip()), str(error))
        raise ModelError(f"{path}: the weights do not match the configuration ({first})") from None


# ---------------------------------------------------------------- other libraries' layouts


def sequence_classifier(model: Model) -> str | None:
    """The transformers class that computes the same logits, where the architecture has one."""
    from transformers import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING as known

    encoder = model.encoder
    if encoder.model_type not in SHAPES or type(encoder.config) not in known:
        return None
    if not isinstance(model.heads["logits"], Classifier):
        return None
    same = encoder.pooling == "first" or (
        encoder.pooling == "own" and encoder.model_type in ("bert", "albert")
    )
    return str(known[type(encoder.config)].__name__) if same else None


def _encoder_facts(encoder: Encoder) -> dict[str, Any]:
    """What is needed to build an encoder again, beside its tensors."""
    facts = {"name": encoder.name, "model_type": encoder.model_type, "pooling": encoder.pooling}
    return facts | ({"textcnn": encoder.config.to_dict()} if encoder.model_type == "textcnn" else {})


def write_encoder(
    folder: Path,
    encoder: Encoder,
    max_length: int,
    *,
    classifier: Model | None = None,
    dense: nn.Module | None = None,
) -> None:
    """The weights as other libraries read them: as a sequence classifier where it is one, else as a bare encoder.

    `dense` is a last layer with tanh, for sentence-transformers.
    """
    trunk = merged_trunk(encoder)
    if encoder.model_type == "textcnn":
        write_tensors(folder / WEIGHTS, trunk.state_dict())
        return
    if classifier is not None:
        _write_transformers(folder, classifier, trunk)
    else:
        config = copy.deepcopy(trunk.config)
        config.architectures = [type(trunk).__name__]
        _write_trunk(folder, config, dict(trunk.state_dict()))
    _write_sentence_transformers(folder, encoder, trunk, max_length, dense)


def _write_transformers(folder: Path, model: Model, trunk: Any) -> None:
    config = copy.deepcopy(trunk.config)
    tensors = {key: value for key, value in trunk.state_dict().items()}
    name = sequence_classifier(model)
    if name is None:
        config.architectures = [type(trunk).__name__]
    else:
        config.architectures = [name]
        config.id2label = dict(enumerate(model.labels))
        config.label2id = {label: i for i, label in enumerate(model.labels)}
        config.problem_type = "single_label_classification"  # whatever the encoder was before
        if model.encoder.model_type == "xlnet":
            config.summary_type, config.summary_use_proj, config.summary_activation = (
                "last",
                True,
                "tanh",
            )
        if model.encoder.model_type == "modernbert":
            config.classifier_pooling, config.classifier_activation = "cls", "gelu"
        tensors = {f"{trunk.base_model_prefix}.{key}": value for key, value in tensors.items()}
        tensors |= _head_tensors(model)
    _write_trunk(folder, config, tensors)


def _write_trunk(folder: Path, config: Any, tensors: dict[str, Tensor]) -> None:
    """A configuration and its weights, as transformers reads them."""
    config.dtype = "float32"
    config.save_pretrained(folder)
    write_tensors(folder / WEIGHTS, tensors, {"format": "pt"})


def _head_tensors(model: Model) -> dict[str, Tensor]:
    """The classifier's tensors under the architecture's own names."""
    shape, head = SHAPES[model.encoder.model_type], model.heads["logits"]
    assert isinstance(head, Classifier)
    layers = {shape.dense: head.dense, shape.out: head.out}
    if shape.norm:
        layers[shape.norm] = head.norm
    return {
        f"{name}.{key}": value for name, layer in layers.items() for key, value in layer.state_dict().items()
    }


def _write_sentence_transformers(
    folder: Path, encoder: Encoder, trunk: Any, max_length: int, dense: nn.Module | None = None
) -> None:
    """What sentence-transformers needs to make the same vectors; `dense` is a last layer with tanh."""
    place = "sentence_transformers.models."
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": place + "Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": place + "Pooling"},
    ]
    (folder / "1_Pooling").mkdir()
    last = encoder.model_type == "xlnet"
    pooling = {
        "word_embedding_dimension": encoder.dim,
        "pooling_mode_cls_token": encoder.pooling != "mean" and not last,
        "pooling_mode_mean_tokens": encoder.pooling == "mean",
        "pooling_mode_max_tokens": False,
        "pooling_mode_lasttoken": encoder.pooling != "mean" and last,
    }
    write_json(folder / "1_Pooling" / "config.json", pooling)
    if encoder.pooling == "own":
        dense = getattr(trunk.pooler, "dense", trunk.pooler)
    if dense is not None:
        (folder / "2_Dense").mkdir()
        write_json(
            folder / "2_Dense" / "config.json",
            {
                "in_features": encoder.dim,
                "out_features": encoder.dim,
                "bias": True,
                "activation_function": "torch.nn.modules.activation.Tanh",
            },
        )
        write_tensors(
            folder / "2_Dense" / WEIGHTS,
            {f"linear.{key}": value for key, value in dense.state_dict().items()},
        )
        modules.append({"idx": 2, "name": "2", "path": "2_Dense", "type": place + "Dense"})
    write_json(folder / "modules.json", modules)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": max_length, "do_lower_case": False})
