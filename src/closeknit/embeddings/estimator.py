"""SentenceEncoder: a sentence encoder with the interface of scikit-learn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from closeknit.console import follow, say
from closeknit.data.examples import single_texts
from closeknit.data.python_inputs import as_list, label_values
from closeknit.data.scored_pairs import ScoredPairs, scored_pairs_from
from closeknit.data.sentences import Sentences, sentences_from
from closeknit.embeddings.config import EmbeddingConfig, with_recipe
from closeknit.embeddings.control import (
    Evaluation,
    check_control,
    evaluation_record,
    evaluation_sets,
    random_sentences,
    spearman_on,
    training_rows,
)
from closeknit.embeddings.fit import EmbeddingFit, check_data
from closeknit.embeddings.layers import MOST_TEXTS, LayerAnisotropy, layer_anisotropy
from closeknit.embeddings.model import SentenceModel
from closeknit.embeddings.negatives import mine_negatives
from closeknit.embeddings.score_tables import Score, evaluate_suite
from closeknit.encoders.inference import Floats
from closeknit.errors import DataError
from closeknit.models.estimator_settings import (
    given_settings,
    plain_values,
    settings_argument,
    unnamed_settings,
)
from closeknit.objectives.copies import TextFunction


def _sentences_of(rows: Sequence[Any] | Sentences, y: Sequence[Any] | None) -> Sentences:
    """The training rows; labels are taken with a list only, because `Sentences` have groups."""
    name = "the training data"
    if not isinstance(rows, Sentences):
        return sentences_from(
            as_list(rows), None if y is None else label_values(y, name), name=name
        )
    if y is not None:
        raise DataError(
            "the training rows are Sentences, which have their groups already; give labels to "
            "sentences_from, or give fit a list"
        )
    return rows


class SentenceEncoder(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Turns a pretrained encoder into a sentence encoder; texts in, vectors out.

    `fit` takes texts, (text, text2) pairs that belong together, or (text, text2, negative)
    triplets; labels, where given, keep rows of one class from being each other's negatives.
    `method` is simcse, mirror or multiple_negatives; None is simcse for texts and triplets,
    multiple_negatives for pairs. `method_options`, `train_options` and `encoder_options` take the
    settings of the tables [method], [train] and [encoder] of a run file. `second_view` says what
    makes the second view of a single text differ: a name (the setting `method.second_view`), or a
    function from a list of texts to as many changed texts.
    """

    def __init__(
        self,
        method: str | None = None,
        encoder: str | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        max_length: int = 128,
        pooling: str = "mean",
        method_options: Mapping[str, Any] | None = None,
        random_state: int = 2,
        train_options: Mapping[str, Any] | None = None,
        encoder_options: Mapping[str, Any] | None = None,
        verbose: bool = False,
        second_view: str | TextFunction | None = None,
    ) -> None:
        self.method = method
        self.encoder = encoder
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.max_length = max_length
        self.pooling = pooling
        self.method_options = method_options
        self.random_state = random_state
        self.train_options = train_options
        self.encoder_options = encoder_options
        self.verbose = verbose
        self.second_view = second_view

    def fit(
        self,
        X: Sequence[Any] | Sentences,
        y: Sequence[Any] | None = None,
        validation: Any = None,
        *,
        evaluate: Any = None,
        exclude_evaluated: bool = False,
        control: str | None = None,
        mine: bool = False,
    ) -> SentenceEncoder:
        """Learn from texts, pairs or triplets, as a list or as `Sentences`.

        - `validation`: (text, text, score) rows, on which the best state is chosen and kept.
        - `evaluate`: suites, files or folders of scored pairs, or `ScoredPairs`. The attribute
          `evaluation_` then holds the scores `before` and `after`.
        - `exclude_evaluated`: drop the rows with a text of the evaluation or the validation first.
          `model_.metrics` says how many were dropped.
        - `control="random"`: also train on random strings with the same settings. `evaluation_`
          then holds their scores as `control`, and `control_` is the encoder.
        - `mine`: first find a hard negative for each pair, with the encoder as it is.
        """
        sentences = _sentences_of(X, y)
        if validation is not None and not isinstance(validation, ScoredPairs):
            validation = scored_pairs_from(validation, name="the validation part")
        asked = evaluation_sets(evaluate, log=say)
        evaluated = [*asked, *([] if validation is None else [validation])]
        check_control(control, exclude_evaluated, evaluated)
        config = self._config(len(sentences.columns), mine=mine)
        check_data(sentences, config.method, mine=mine)
        sentences, facts = training_rows(sentences, evaluated, exclude=exclude_evaluated, log=say)
        scored = asked or (evaluated if control else [])
        evaluation: Evaluation = {}
        if mine or scored:
            untrained = SentenceModel.before_training(config)
            if mine:
                sentences = mine_negatives(untrained.encode, sentences)
            if scored:
                evaluation["before"] = spearman_on(untrained.encode, scored)
        if control:
            strings = random_sentences(sentences, config.train.seed)
            self.control_ = self._trained(strings, config, validation)
            evaluation["control"] = spearman_on(self.control_.encode, scored)
        self.model_ = self._trained(sentences, config, validation)
        self.model_.metrics.update(facts)
        if scored:
            evaluation["after"] = spearman_on(self.model_.encode, scored)
            self.evaluation_ = evaluation
            self.model_.metrics["evaluation"] = evaluation_record(evaluation)
        return self

    def _trained(
        self, sentences: Sentences, config: EmbeddingConfig, validation: ScoredPairs | None
    ) -> SentenceModel:
        fit = EmbeddingFit(
            sentences,
            config,
            validation=validation,
            second_view=self.second_view if callable(self.second_view) else None,
        )
        for _ in follow(fit, config.method.name, show=self.verbose):
            pass
        return fit.model

    def _config(self, columns: int, *, mine: bool = False) -> EmbeddingConfig:
        method = self.method or ("multiple_negatives" if columns == 2 else "simcse")
        view = "function" if callable(self.second_view) else self.second_view
        tables = {
            "encoder": {
                "name": self.encoder,
                "max_length": self.max_length,
                "pooling": self.pooling,
                **settings_argument(encoder_options=self.encoder_options),
            },
            "method": {
                "name": method,
                **given_settings(second_view=view),
                **settings_argument(method_options=self.method_options),
            },
            "train": {
                **given_settings(
                    epochs=self.epochs, batch_size=self.batch_size, lr=self.learning_rate
                ),
                "seed": self.random_state,
                **settings_argument(train_options=self.train_options),
            },
        }
        mined = mine and columns > 1  # a mined negative is one column more
        return with_recipe(plain_values(tables), columns + mined)

    def encode(
        self,
        texts: Sequence[str],
        batch_size: int | None = None,
        normalize: bool = False,
        show_progress: bool = False,
        half: bool = False,
    ) -> Floats:
        """The vectors (R, H) of texts; `batch_size` bounds how many texts of 128 tokens are encoded
        at once.

        `half` computes in bfloat16 on a GPU: faster, and right to two or three digits.
        """
        check_is_fitted(self, "model_")
        return self.model_.encode(
            single_texts(as_list(texts)),
            normalize=normalize,
            batch_size=batch_size,
            show_progress=show_progress,
            half=half,
        )

    def transform(self, X: Sequence[str]) -> Floats:
        return self.encode(X)

    def similarity(self, first: Sequence[str], second: Sequence[str] | None = None) -> Floats:
        """Cosines (R, S) of texts with others, or with each other."""
        a = self.encode(first, normalize=True)
        similar: Floats = a @ (a if second is None else self.encode(second, normalize=True)).T
        return similar

    def evaluate(
        self,
        names: str | Path | Sequence[str | Path] = "sts",
        *,
        measures: Sequence[str] = ("spearman",),
    ) -> list[Score]:
        """The scores on suites (`sts`, `words`), their data sets, or files of scored pairs.

        `measures` are spearman, pearson, spearman_of_groups, alignment, uniformity and anisotropy.
        """
        check_is_fitted(self, "model_")
        return evaluate_suite(self.model_.encode, names, measures=measures)

    def layer_anisotropy(
        self, texts: Sequence[str], *, most: int = MOST_TEXTS, seed: int = 0
    ) -> list[LayerAnisotropy]:
        """The anisotropy of every layer, for words in context and for whole texts."""
        check_is_fitted(self, "model_")
        return layer_anisotropy(self.model_, single_texts(as_list(texts)), most=most, seed=seed)

    def save(self, folder: str | Path) -> None:
        check_is_fitted(self, "model_")
        self.model_.save(folder)

    @classmethod
    def load(cls, folder: str | Path, *, device: str | None = None) -> SentenceEncoder:
        """An encoder that was saved; ready to encode."""
        model = SentenceModel.load(folder, device=device)
        tables = model.config.to_dict()
        made = cls(
            tables["method"]["name"],
            tables["encoder"]["name"],
            tables["train"]["epochs"],
            tables["train"]["batch_size"],
            tables["train"]["lr"],
            tables["encoder"]["max_length"],
            tables["encoder"]["pooling"],
            unnamed_settings(tables["method"], "name"),
            tables["train"]["seed"],
            unnamed_settings(tables["train"], "epochs", "batch_size", "lr", "seed"),
            unnamed_settings(tables["encoder"], "name", "max_length", "pooling"),
        )
        made.model_ = model
        return made

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")
