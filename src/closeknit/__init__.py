"""Closeknit: fine-tune text encoders with contrastive and metric-learning objectives.

The names in the table below are public. Each is imported when it is first used, so that `import
closeknit` and `closeknit --help` are quick. Three packages are public too: `closeknit.objectives`,
`closeknit.metrics` and `closeknit.data`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# The module that each public name comes from.
_MODULES = {
    # estimators
    "MultiTask": "multitask.estimator",
    "SentenceEncoder": "embeddings.estimator",
    "TextClassifier": "classification.estimator",
    # data and encoders
    "Encoder": "encoder",
    "Examples": "data",
    "encode_texts": "evaluation",
    "load": "catalogue",
    "load_encoder": "encoder",
    # the training loop
    "Batch": "tasks",
    "Step": "tasks",
    "Task": "tasks",
    "make_task": "make_task",
    "predict_logits": "make_task",
    "train": "training",
    # objectives
    "OBJECTIVES": "objectives",
    "Joint": "objectives",
    "Term": "objectives",
    # settings
    "DataConfig": "config",
    "EmbeddingConfig": "embeddings.model",
    "EncoderConfig": "config",
    "MethodConfig": "embeddings.model",
    "MultiTaskConfig": "multitask.config",
    "ObjectiveConfig": "config",
    "RunConfig": "config",
    "TrainConfig": "train_config",
    # studies
    "Place": "comparison",
    "Result": "protocol",
    "Source": "study",
    "Study": "study",
    "read_study": "study",
    "run_study": "comparison",
    # errors
    "CloseknitError": "errors",
    "ConfigError": "errors",
    "DataError": "errors",
    "MissingExtra": "errors",
    "ModelError": "errors",
    "Stopped": "errors",
    "TrainingError": "errors",
}

__all__ = sorted(_MODULES)

if TYPE_CHECKING:  # the same names for type checkers; a test compares the two
    from closeknit.catalogue import load as load
    from closeknit.classification.estimator import TextClassifier as TextClassifier
    from closeknit.comparison import Place as Place
    from closeknit.comparison import run_study as run_study
    from closeknit.config import DataConfig as DataConfig
    from closeknit.config import EncoderConfig as EncoderConfig
    from closeknit.config import ObjectiveConfig as ObjectiveConfig
    from closeknit.config import RunConfig as RunConfig
    from closeknit.data import Examples as Examples
    from closeknit.embeddings.estimator import SentenceEncoder as SentenceEncoder
    from closeknit.embeddings.model import EmbeddingConfig as EmbeddingConfig
    from closeknit.embeddings.model import MethodConfig as MethodConfig
    from closeknit.encoder import Encoder as Encoder
    from closeknit.encoder import load_encoder as load_encoder
    from closeknit.errors import CloseknitError as CloseknitError
    from closeknit.errors import ConfigError as ConfigError
    from closeknit.errors import DataError as DataError
    from closeknit.errors import MissingExtra as MissingExtra
    from closeknit.errors import ModelError as ModelError
    from closeknit.errors import Stopped as Stopped
    from closeknit.errors import TrainingError as TrainingError
    from closeknit.evaluation import encode_texts as encode_texts
    from closeknit.make_task import make_task as make_task
    from closeknit.make_task import predict_logits as predict_logits
    from closeknit.multitask.config import MultiTaskConfig as MultiTaskConfig
    from closeknit.multitask.estimator import MultiTask as MultiTask
    from closeknit.objectives import OBJECTIVES as OBJECTIVES
    from closeknit.objectives import Joint as Joint
    from closeknit.objectives import Term as Term
    from closeknit.protocol import Result as Result
    from closeknit.study import Source as Source
    from closeknit.study import Study as Study
    from closeknit.study import read_study as read_study
    from closeknit.tasks import Batch as Batch
    from closeknit.tasks import Step as Step
    from closeknit.tasks import Task as Task
    from closeknit.train_config import TrainConfig as TrainConfig
    from closeknit.training import train as train

else:  # type checkers do not see this function, so that they know an unknown name

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module 'closeknit' has no attribute {name!r}")
        from importlib import import_module

        value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
        globals()[name] = value  # the next use finds it without this function
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
