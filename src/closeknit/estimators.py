"""TextClassifier and SentenceEncoder: scikit-learn shells around fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from .config import RunConfig
from .data import Examples, from_python, holds_no_rows, is_missing, single_texts
from .embedding import EmbeddingFit
from .embedding_config import EmbeddingConfig, with_recipe
from .embedding_scores import ScoredPairs, pairs_from
from .errors import ConfigError, DataError
from .evaluation import Floats, softmax
from .fitting import Fit
from .model import Model
from .progress import follow
from .sentence_model import SentenceModel
from .sentences import sentences_from

Texts = Sequence[str] | Sequence[tuple[str, str]]
_TYPES: dict[str, Any] = {"str": str, "int": int, "bool": lambda text: text == "True"}


class TextClassifier(ClassifierMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Fine-tunes a pretrained text encoder; texts in, classes out.

    Texts are strings, or (first, second) pairs. `objective` "auto" is the recipe to start with; `closeknit objectives` lists the
    others. `encoder` is a hub name, a folder, "textcnn", or None for the bundled all-MiniLM-L6-v2. What is None comes with the
    objective: for "auto" epochs and batch size by the number of rows and pooling by the mean, for the others 10 epochs, batches
    of 64 and the first token; `learning_rate` is then 5e-5 for 768 dimensions, in inverse proportion for others, and 1e-3
    for TextCNN, which "auto" multiplies by 0.5 to 1.5 according to the number of rows and classes. `objective_options`,
    `train_options` and `encoder_options` take the settings of the tables [objective], [train] and
    [encoder] of a run file. `verbose` shows a progress bar on the error stream.
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

    def fit(
        self, X: Texts, y: Sequence[Any], validation: tuple[Texts, Sequence[Any]] | None = None
    ) -> TextClassifier:
        """Learn from texts and their labels; with a validation part the best epoch is kept."""
        examples, labels, kind = _labelled(X, y, "the training data")
        classes = np.unique(labels)
        names = [str(name) for name in classes.tolist()]
        held_out = None
        if validation is not None:
            if not isinstance(validation, tuple | list) or len(validation) != 2:
                raise DataError(
                    "the validation part is not (texts, labels); to hold out a tenth of the training data, "
                    'give train_options={"validation": 0.1} instead'
                )
            held_out, _, _ = _labelled(*validation, "the validation part")
        fit = Fit(examples, self._config(), validation=held_out, labels=names)
        for _ in follow(fit, self.objective, show=self.verbose):
            pass
        self.model_ = fit.model
        self.model_.label_type = kind
        self.classes_ = classes
        return self

    def _config(self) -> RunConfig:
        train: dict[str, Any] = {
            **_given(epochs=self.epochs, batch_size=self.batch_size, lr=self.learning_rate),
            "seed": self.random_state,
            **_table(train_options=self.train_options),
        }
        encoder = {
            **_given(name=self.encoder, pooling=self.pooling),
            "max_length": self.max_length,
            **_table(encoder_options=self.encoder_options),
        }
        if not isinstance(self.random_state, int | np.integer):
            raise ConfigError(f"random_state is {self.random_state}; it must be a whole number")
        objective = {"name": self.objective, **_table(objective_options=self.objective_options)}
        tables = {"encoder": encoder, "objective": objective, "train": train}
        return RunConfig.from_dict(_plain(tables))

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

    def evaluate(self, X: Texts, y: Sequence[Any]) -> dict[str, Any]:
        """Accuracy, weighted and macro F1, and each class on its own."""
        check_is_fitted(self, "model_")
        return self.model_.evaluate(_labelled(X, y, "the data")[0])

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
        usual = RunConfig.from_dict({"encoder": name, "objective": {"name": run.objective.name}}).to_dict()
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
            train_options=_beyond(options["train"], ("epochs", "batch_size", "lr", "seed"), usual["train"]),
            encoder_options=_beyond(options["encoder"], ("name", "max_length", "pooling"), usual["encoder"]),
        )
        loaded.model_ = model
        loaded.classes_ = np.array([_TYPES[model.label_type](label) for label in model.labels])
        return loaded

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        return tags


def _given(**settings: Any) -> dict[str, Any]:
    """The settings that were given; the others come with the objective or method."""
    return {name: value for name, value in settings.items() if value is not None}


def _table(**given: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The settings of one argument, by its name; refused where it holds none."""
    ((name, settings),) = given.items()
    if settings is not None and not isinstance(settings, Mapping):
        raise ConfigError(f"{name} is {settings!r}; it must be a dictionary of settings")
    return settings or {}


def _plain(value: Any) -> Any:
    """Settings as a run file would hold them, however deep: no numbers or arrays of NumPy, no tensors, no paths."""
    if isinstance(value, Mapping):
        return {key: _plain(own) for key, own in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(own) for own in value]
    if hasattr(value, "tolist"):
        return value.tolist()
    return str(value) if isinstance(value, Path) else value


class SentenceEncoder(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Turns a pretrained encoder into a sentence encoder; texts in, vectors out.

    `fit` takes texts, (text, text2) pairs that belong together, or (text, text2, negative) triplets; labels, where given,
    keep rows of one class from being each other's negatives. `method` is simcse, mirror or
    multiple_negatives; None is simcse for texts and triplets, multiple_negatives for pairs. `method_options`, `train_options`
    and `encoder_options` take the settings of the tables [method], [train] and [encoder] of a run file.
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

    def fit(
        self, X: Sequence[Any], y: Sequence[Any] | None = None, validation: Any = None
    ) -> SentenceEncoder:
        """Learn from texts, pairs or triplets; with (text, text, score) rows as validation the best epoch is kept."""
        name = "the training data"
        sentences = sentences_from(_listed(X), None if y is None else _values(y, name), name=name)
        if validation is not None and not isinstance(validation, ScoredPairs):
            validation = pairs_from(validation, name="the validation part")
        fit = EmbeddingFit(sentences, self._config(len(sentences.columns)), validation=validation)
        for _ in follow(fit, fit.config.method.name, show=self.verbose):
            pass
        self.model_ = fit.model
        return self

    def _config(self, columns: int) -> EmbeddingConfig:
        method = self.method or ("multiple_negatives" if columns == 2 else "simcse")
        tables = {
            "encoder": {
                "name": self.encoder,
                "max_length": self.max_length,
                "pooling": self.pooling,
                **_table(encoder_options=self.encoder_options),
            },
            "method": {"name": method, **_table(method_options=self.method_options)},
            "train": {
                **_given(epochs=self.epochs, batch_size=self.batch_size, lr=self.learning_rate),
                "seed": self.random_state,
                **_table(train_options=self.train_options),
            },
        }
        return with_recipe(_plain(tables), columns)

    def encode(
        self,
        texts: Sequence[str],
        batch_size: int | None = None,
        normalize: bool = False,
        show_progress: bool = False,
        half: bool = False,
    ) -> Floats:
        """The vectors (R, H) of texts; `batch_size` bounds how many texts of 128 tokens are encoded at once.

        `half` computes in bfloat16 on a GPU: faster, and right to two or three digits.
        """
        check_is_fitted(self, "model_")
        return self.model_.encode(
            single_texts(_listed(texts)),
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
            _rest(tables["method"], "name"),
            tables["train"]["seed"],
            _rest(tables["train"], "epochs", "batch_size", "lr", "seed"),
            _rest(tables["encoder"], "name", "max_length", "pooling"),
        )
        made.model_ = model
        return made

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")


def _rest(values: Mapping[str, Any], *named: str) -> dict[str, Any]:
    """The settings of a table that have no argument of their own, but for those that are not set."""
    return {key: value for key, value in values.items() if key not in named and value is not None}


def _listed(texts: Any) -> Any:
    """Iterators are read once, here; what has a length is left as it is."""
    return texts if hasattr(texts, "__len__") or texts is None else list(texts)


def _labelled(X: Any, y: Any, name: str) -> tuple[Examples, npt.NDArray[Any], str]:
    """Texts with their labels, the labels as they were given, all of one kind, and that kind's name."""
    values = _values(y, name)
    kinds = {type(value) for value in values}
    if float in kinds:
        raise DataError(f"{name}: labels are fractional numbers; give class names or whole numbers")
    if not kinds <= {str, int, bool}:
        kind = next(kind.__name__ for kind in kinds if kind not in (str, int, bool))
        raise DataError(f"{name}: labels are of the kind {kind}; give class names or whole numbers")
    if len(kinds) > 1:
        shown = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise DataError(f"{name}: labels are of several kinds ({shown}); give one kind")
    labels = np.array(values)
    return from_python(X, labels.tolist(), name=name), labels, next(iter(kinds)).__name__ if kinds else "str"


def _values(y: Any, name: str) -> list[Any]:
    """Labels as a list; none is missing."""
    if y is None:
        raise DataError(f"{name}: there are no labels; give one label a text")
    if holds_no_rows(y):
        raise DataError(f"{name}: the labels are a {type(y).__name__}; give a list, or one column of a table")
    values = [value.item() if isinstance(value, np.generic) else value for value in y]
    if any(not isinstance(value, str) and is_missing(value) for value in values):
        raise DataError(f"{name}: some labels are missing (None or NaN)")
    return values


def _beyond(
    values: Mapping[str, Any], named: Sequence[str], defaults: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The settings that have no argument of their own and are not at their default."""
    return {k: v for k, v in values.items() if k not in named and v != defaults[k]} or None
