"""Writes a model so that transformers and sentence-transformers can load it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from closeknit.encoders.encoder import Encoder
from closeknit.encoders.heads import SHAPES, Classifier
from closeknit.encoders.loading import merged_trunk
from closeknit.models.folder import (
    WEIGHTS,
)
from closeknit.storage import write_json, write_tensors

# ---------------------------------------------------------------- other libraries' layouts


class Exported(Protocol):
    """What is written of a classifier for transformers."""

    encoder: Encoder
    heads: nn.ModuleDict
    labels: list[str]


def sequence_classifier(model: Exported) -> str | None:
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


def write_encoder(
    folder: Path,
    encoder: Encoder,
    max_length: int,
    *,
    classifier: Exported | None = None,
    dense: nn.Module | None = None,
) -> None:
    """The weights as other libraries read them: as a sequence classifier where it is one, else as a
    bare encoder.

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


def _write_transformers(folder: Path, model: Exported, trunk: Any) -> None:
    config = copy.deepcopy(trunk.config)
    tensors = {key: value for key, value in trunk.state_dict().items()}
    name = sequence_classifier(model)
    if name is None:
        config.architectures = [type(trunk).__name__]
    else:
        config.architectures = [name]
        config.id2label = dict(enumerate(model.labels))
        config.label2id = {label: i for i, label in enumerate(model.labels)}
        config.problem_type = (
            "single_label_classification"  # the pretrained encoder may say something else
        )
        if model.encoder.model_type == "xlnet":
            config.summary_type = "last"
            config.summary_use_proj = True
            config.summary_activation = "tanh"
        if model.encoder.model_type == "modernbert":
            config.classifier_pooling = "cls"
            config.classifier_activation = "gelu"
        tensors = {f"{trunk.base_model_prefix}.{key}": value for key, value in tensors.items()}
        tensors |= _head_tensors(model)
    _write_trunk(folder, config, tensors)


def _write_trunk(folder: Path, config: Any, tensors: dict[str, Tensor]) -> None:
    """A configuration and its weights, as transformers reads them."""
    config.dtype = "float32"
    config.save_pretrained(folder)
    write_tensors(folder / WEIGHTS, tensors, {"format": "pt"})


def _head_tensors(model: Exported) -> dict[str, Tensor]:
    """The classifier's tensors under the architecture's own names."""
    shape = SHAPES[model.encoder.model_type]
    head = model.heads["logits"]
    assert isinstance(head, Classifier)
    layers = {shape.dense: head.dense, shape.out: head.out}
    if shape.norm:
        layers[shape.norm] = head.norm
    return {
        f"{name}.{key}": value
        for name, layer in layers.items()
        for key, value in layer.state_dict().items()
    }


def _write_sentence_transformers(
    folder: Path, encoder: Encoder, trunk: Any, max_length: int, dense: nn.Module | None = None
) -> None:
    """What sentence-transformers needs to make the same vectors; `dense` is a last layer with
    tanh.
    """
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
    write_json(
        folder / "sentence_bert_config.json", {"max_seq_length": max_length, "do_lower_case": False}
    )
