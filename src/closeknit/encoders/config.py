"""EncoderConfig: which encoder a run starts from, and how it is used."""

from __future__ import annotations

from dataclasses import dataclass

from closeknit.data.examples import Examples
from closeknit.encoders.encoder import POOLINGS, Encoder
from closeknit.encoders.loading import load_encoder
from closeknit.encoders.tokenisers import Tokeniser
from closeknit.errors import ConfigError
from closeknit.settings import SettingsTable, setting


@dataclass(frozen=True)
class EncoderConfig(SettingsTable, table="encoder"):
    """Which encoder, and how it is used; without a name it is the bundled all-MiniLM-L6-v2."""

    name: str | None = setting(
        None,
        help="A hub name, a folder, or `textcnn`. None is the bundled all-MiniLM-L6-v2.",
    )
    pooling: str = setting(
        "first",
        choices=POOLINGS,
        help="How the token vectors become one vector. `first`: the classification token (XLNet: the "
        "last token). `mean`: the mean of the real tokens. `own`: the architecture's trained pooler "
        "(BERT, RoBERTa, ALBERT) or TextCNN's maximum over time. TextCNN has no first token and "
        "always takes `own`.",
    )
    max_length: int = setting(128, at_least=4, help="Tokens that a text is cut to.")
    dropout: float | None = setting(
        None,
        at_least=0,
        at_most=1,
        help="Replaces every dropout rate of the architecture. 0 switches dropout off, and none "
        "leaves the rates as they are. An objective whose two views of a text differ by dropout alone "
        "sets 0.1 where this is none and the architecture has no dropout, and refuses 0.",
    )
    lora_rank: int = setting(
        0,
        at_least=0,
        help="Above 0 the encoder's weights are frozen and low-rank adapters of this rank are trained "
        "in every `nn.Linear` (extra `lora`; XLNet's attention has none). The adapters are merged "
        "into the weights when the model is saved.",
    )
    frozen: bool = setting(
        False, help="Whether the encoder's weights stay as they are and only the heads are trained."
    )

    def check_relations(self) -> None:
        """Refuse adapters and frozen weights where there are no pretrained weights."""
        if self.lora_rank and self.name == "textcnn":
            raise ConfigError("encoder.lora_rank adapts pretrained weights; textcnn has none")
        if self.frozen and (self.lora_rank or self.name == "textcnn"):
            raise ConfigError(
                "encoder.frozen leaves pretrained weights as they are; not with textcnn or lora_rank"
            )

    def load(
        self, vocabulary: Examples | None = None, *, bare: bool = False
    ) -> tuple[Encoder, Tokeniser]:
        """The encoder and its tokeniser; TextCNN takes its words from the texts of `vocabulary`.

        With `bare` an encoder loads faster where its architecture allows it, and cannot be saved.
        """
        return load_encoder(
            self.name,
            pooling=self.pooling,
            max_length=self.max_length,
            dropout=self.dropout,
            lora_rank=self.lora_rank,
            frozen=self.frozen,
            vocabulary=vocabulary,
            bare=bare,
        )
