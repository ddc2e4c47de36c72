"""TextClassifier and SentenceEncoder: scikit-learn shells around fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from closeknit.classification.config import RunConfig
from closeknit.classification.fit import ClassifierFit
from closeknit.classification.label_relations import LabelRelations
from closeknit.classification.model import Model
from closeknit.console import follow
from closeknit.data.examples import from_python
from closeknit.data.python_inputs import labelled_examples
from closeknit.encoders.inference import Floats, softmax
from closeknit.errors import ConfigError, DataError
from closeknit.models.estimator_settings import (
    changed_settings,
    given_settings,
    plain_values,
    settings_argument,
)
from closeknit.objectives.copies import TextFunction

Texts = Sequence[str] | Sequence[tuple[str, str]]
_TYPES: dict[str, Any] = {"str": str, "int": int, "bool": lambda text: text == "True"}


class TextClassifier(ClassifierMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Fine-tunes a pretrained text encoder; texts in, classes out.

    Texts are strings, or (first, second) pairs. `objective` "auto" is the recipe to start with;
    `closeknit objectives` lists the others. `encoder` is a hub name, a folder, "textcnn", or None
    for the bundled all-MiniLM-L6-v2. What is None comes with the objective: for "auto" epochs and
    batch size by the number of rows and pooling by the mean, for the others 10 epochs, batches of
    64 and the first token; `learning_rate` is then 5e-5 for 768 dimensions, in inverse proportion
    for others, and 1e-3 for TextCNN, which "auto" multiplies by 0.5 to 1.5 according to the number
    of rows and classes. `objective_options`, `train_options` and `encoder_options` take the
    settings of the tables [objective], [train] and [encoder] of a run file. `verbose` shows a
    progress bar on the error stream.

    With `second_view` every text is encoded twice. It says what makes the second copy differ: a
    name such as "span" or "synonyms" (the option `second_view` of every objective), or a function
    from a list of texts to as many changed texts.
    """

    def __init__(
        self,
        objective: str = "auto",
        encoder: str | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        max_length: int = 128,
        pooling: str | None = None,
        objective_options: Mapping[str, Any] | None = None,
        random_state: int = 2,
        train_options: Mapping[str, Any] | None = None,
        encoder_options: Mapping[str, Any] | None = None,
        verbose: bool = False,
        second_view: str | TextFunction | None = None,
    ) -> None:
        self.objective = objective
        self.encoder = encoder
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.max_length = max_length
        self.pooling = pooling
        self.objective_options = objective_options
        self.random_state = random_state
        self.train_options = train_options
        self.encoder_options = encoder_options
        self.verbose = verbose
        self.second_view = second_view

    def fit(
        self, X: Texts, y: Sequence[Any], validation: tuple[Texts, Sequence[Any]] | None = None
    ) -> TextClassifier:
        """Learn from texts and their labels; with a validation part the best epoch is kept."""
        examples, labels, kind = labelled_examples(X, y, "the training data")
        classes = np.unique(labels)
        names = [str(name) for name in classes.tolist()]
        held_out = None
        if validation is not None:
            if not isinstance(validation, tuple | list) or len(validation) != 2:
                raise DataError(
                    "the validation part is not (texts, labels); to hold out a tenth of the training data, "
                    'give train_options={"validation": 0.1} instead'
                )
            held_out, _, _ = labelled_examples(*validation, "the validation part")
        fit = ClassifierFit(
            examples,
            self._config(),
            validation=held_out,
            labels=names,
            second_view=self.second_view if callable(self.second_view) else None,
        )
        for _ in follow(fit, self.objective, show=self.verbose):
            pass
        self.model_ = fit.model
        self.model_.label_type = kind
        self.model_.remember_training(examples)
        self.classes_ = classes
        return self

    def _config(self) -> RunConfig:
        train: dict[str, Any] = {
            **given_settings(epochs=self.epochs, batch_size=self.batch_size, lr=self.learning_rate),
            "seed": self.random_state,
            **settings_argument(train_options=self.train_options),
        }
        encoder = {
            **given_settings(name=self.encoder, pooling=self.pooling),
            "max_length": self.max_length,
            **settings_argument(encoder_options=self.encoder_options),
        }
        if not isinstance(self.random_state, int | np.integer):
            raise ConfigError(f"random_state is {self.random_state}; it must be a whole number")
        objective = {
            "name": self.objective,
            **self._copies(),
            **settings_argument(objective_options=self.objective_options),
        }
        tables = {"encoder": encoder, "objective": objective, "train": train}
        return RunConfig.from_dict(plain_values(tables))

    def _copies(self) -> dict[str, Any]:
        """The options of the objective that `second_view` stands for."""
        if self.second_view is None:
            return {}
        name = "function" if callable(self.second_view) else self.second_view
        return {"copies": 2, "second_view": name}

    def _outputs(self, X: Texts) -> tuple[Floats, Floats]:
        check_is_fitted(self, "model_")
        return self.model_.outputs(from_python(X, name="the texts"))

    def predict(self, X: Texts) -> npt.NDArray[Any]:
        """The most probable class of each text."""
        best = self._outputs(X)[0].argmax(axis=1)
        classes: npt.NDArray[Any] = self.classes_[best]
        return classes

    def predict_proba(self, X: Texts) -> Floats:
        """The probability of each class (R, C), in the order of `classes_`."""
        return softmax(self._outputs(X)[0])

    def transform(self, X: Texts) -> Floats:
        """The pooled vector of each text (R, H)."""
        return self._outputs(X)[1]

    def evaluate(
        self,
        X: Texts,
        y: Sequence[Any],
        *,
        training: tuple[Texts, Sequence[Any]] | None = None,
    ) -> dict[str, Any]:
        """Accuracy, weighted and macro F1, and each class on its own.

        With `training`, the texts and classes that were trained on, `near_other_label` holds the
        scores on the texts whose nearest training text has another class.
        """
        check_is_fitted(self, "model_")
        known = None if training is None else labelled_examples(*training, "the training data")[0]
        return self.model_.evaluate(labelled_examples(X, y, "the data")[0], known)

    def label_relations(self, X: Texts, y: Sequence[Any]) -> LabelRelations:
        """Which classes the classifier confuses on labelled texts: matrix, tree and pairs."""
        check_is_fitted(self, "model_")
        return self.model_.label_relations(labelled_examples(X, y, "the data")[0])

    def save(self, folder: str | Path) -> None:
        """Write a model folder that this class, transformers and sentence-transformers can load."""
        check_is_fitted(self, "model_")
        self.model_.save(folder)

    @classmethod
    def load(cls, folder: str | Path, *, device: str | None = None) -> TextClassifier:
        """The classifier that `save` or `closeknit train` wrote."""
        model = Model.load(folder, device=device)
        run = model.config
        options = run.to_dict()
        name = {"name": run.encoder.name} if run.encoder.name else {}
        usual = RunConfig.from_dict(
            {"encoder": name, "objective": {"name": run.objective.name}}
        ).to_dict()
        loaded = cls(
            objective=run.objective.name,
            encoder=run.encoder.name,
            epochs=run.train.epochs,
            batch_size=run.train.batch_size,
            learning_rate=run.train.lr,
            max_length=run.encoder.max_length,
            pooling=run.encoder.pooling,
            objective_options=run.objective.options or None,
            random_state=run.train.seed,
            train_options=changed_settings(
                options["train"], ("epochs", "batch_size", "lr", "seed"), usual["train"]
            ),
            encoder_options=changed_settings(
                options["encoder"], ("name", "max_length", "pooling"), usual["encoder"]
            ),
        )
        loaded.model_ = model
        loaded.classes_ = np.array([_TYPES[model.label_type](label) for label in model.labels])
        return loaded

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        return tags
