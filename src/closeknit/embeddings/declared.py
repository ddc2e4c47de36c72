"""What the folder of a sentence encoder declares: how token vectors become the vector of a text.

sentence-transformers writes `modules.json`, the list of the modules that a text passes through, and
a folder with a configuration for each of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from closeknit.encoders.loading import no_needless_retries, quiet_transformers
from closeknit.errors import ModelError
from closeknit.storage import read_json, read_tensors

MODULES = "modules.json"
WEIGHTS = "model.safetensors"
# The kinds of pooling that can be computed here, and what they are called.
_POOLINGS = {"cls": "first", "mean": "mean"}
_OLD_KEYS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_HOW_TO_GO_ON = "name a pooling (--pooling first or mean) to read the encoder without this"


@dataclass(frozen=True)
class Declared:
    """The pooling of a sentence encoder, and the tensors of its dense layer with tanh, if any."""

    pooling: str
    dense: dict[str, Tensor] | None = None


def declared_modules(source: str | Path) -> Declared | None:
    """What a folder, or an encoder on the hub, declares; None where it declares nothing.

    A declaration that cannot be followed is refused: the vectors would be others than the encoder
    was trained for.
    """
    path = _file_of(source, MODULES)
    if path is None:
        return None
    modules = _named_modules(read_json(path), path)
    pooling: str | None = None
    dense: dict[str, Tensor] | None = None
    for kind, place in modules:
        if kind == "Pooling":
            pooling = _pooling(source, place)
        elif kind == "Dense":
            dense = _dense(source, place)
        elif kind not in ("Transformer", "Normalize"):
            raise ModelError(
                f"{source} declares a module {kind} in {MODULES}, which is not known here; "
                f"{_HOW_TO_GO_ON}"
            )
    return None if pooling is None else Declared(pooling, dense)


def _named_modules(listed: Any, path: Path) -> list[tuple[str, str]]:
    """(kind, folder) of each module.

    A name that is read from a file is never used as a path, unless it is a number and the kind.
    """
    if not isinstance(listed, Sequence) or isinstance(listed, str):
        raise ModelError(f"{path} is damaged: it holds no list of modules")
    found: list[tuple[str, str]] = []
    for module in listed:
        if not isinstance(module, Mapping) or not isinstance(module.get("type"), str):
            raise ModelError(f"{path} is damaged: it holds a module without a type")
        kind = str(module["type"]).rpartition(".")[2]
        place = str(module.get("path", ""))
        if kind in ("Pooling", "Dense") and not re.fullmatch(rf"\d+_{kind}", place):
            raise ModelError(
                f'{path}: the folder of {kind} is "{place}"; expected a name like 1_{kind}'
            )
        found.append((kind, place))
    return found


def _pooling(source: str | Path, place: str) -> str:
    """The pooling as it is called here."""
    facts = _configuration(source, place)
    mode = facts.get("pooling_mode")
    if mode is None:
        active = [name for key, name in _OLD_KEYS.items() if facts.get(key)]
        mode = active[0] if len(active) == 1 else active
    if not isinstance(mode, str) or mode not in _POOLINGS:
        shown = mode if isinstance(mode, str) else " and ".join(map(str, mode)) or "none"
        raise ModelError(
            f"{source} declares the pooling {shown}, which is not known here; {_HOW_TO_GO_ON}"
        )
    return _POOLINGS[mode]


def _dense(source: str | Path, place: str) -> dict[str, Tensor]:
    """The weight and bias of a dense layer with tanh that keeps the number of dimensions."""
    facts = _configuration(source, place)
    activation = str(facts.get("activation_function")).rpartition(".")[2]
    square = facts.get("in_features") == facts.get("out_features")
    weights = _file_of(source, f"{place}/{WEIGHTS}")
    tensors = read_tensors(weights) if weights is not None else {}
    names = {"linear.weight": "weight", "linear.bias": "bias"}
    if activation != "Tanh" or not square or set(tensors) != set(names):
        raise ModelError(
            f"{source} declares a dense layer in {place} ({facts.get('in_features')} to "
            f"{facts.get('out_features')} dimensions, {activation}); only a layer with tanh, a bias "
            f"and as many dimensions as the encoder can be read here; {_HOW_TO_GO_ON}"
        )
    return {names[name]: value for name, value in tensors.items()}


def _configuration(source: str | Path, place: str) -> Mapping[str, Any]:
    path = _file_of(source, f"{place}/config.json")
    facts = None if path is None else read_json(path)
    if not isinstance(facts, Mapping):
        raise ModelError(f"{source}: {place}/config.json is missing or damaged; {_HOW_TO_GO_ON}")
    return facts


def _file_of(source: str | Path, name: str) -> Path | None:
    """A file of a folder, or of an encoder on the hub; None where there is none."""
    folder = Path(source)
    if folder.is_dir():
        return folder / name if (folder / name).is_file() else None
    from transformers.utils import cached_file

    with quiet_transformers(), no_needless_retries(source):
        found = cached_file(
            str(source),
            name,
            _raise_exceptions_for_gated_repo=False,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )
    return None if found is None else Path(found)
