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
    # what a classifier confuses
    "LabelRelations": "classification.label_relations",
    "relate_labels": "classification.label_relations",
    # data and encoders
    "Encoder": "encoders.encoder",
    "Examples": "data.examples",
    "encode_texts": "encoders.inference",
    "load": "data.catalogue",
    "load_encoder": "encoders.loading",
    # the training loop
    "Batch": "training.task",
    "Step": "training.task",
    "Task": "training.task",
    "make_task": "classification.make_task",
    "predict_logits": "classification.make_task",
    "train": "training.loop",
    # objectives
    "OBJECTIVES": "objectives",
    "Joint": "objectives",
    "Term": "objectives",
    # settings
    "DataConfig": "classification.config",
    "EmbeddingConfig": "embeddings.config",
    "EncoderConfig": "encoders.config",
    "MethodConfig": "embeddings.config",
    "MultiTaskConfig": "multitask.config",
    "ObjectiveConfig": "objectives.config",
    "RunConfig": "classification.config",
    "TrainConfig": "training.config",
    # studies
    "Place": "studies.run",
    "Result": "studies.results",
    "Source": "studies.study",
    "Study": "studies.study",
    "read_study": "studies.study_file",
    "run_study": "studies.run",
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
    from closeknit.classification.config import DataConfig as DataConfig
    from closeknit.classification.config import RunConfig as RunConfig
    from closeknit.classification.estimator import TextClassifier as TextClassifier
    from closeknit.classification.label_relations import LabelRelations as LabelRelations
    from closeknit.classification.label_relations import relate_labels as relate_labels
    from closeknit.classification.make_task import make_task as make_task
    from closeknit.classification.make_task import predict_logits as predict_logits
    from closeknit.data.catalogue import load as load
    from closeknit.data.examples import Examples as Examples
    from closeknit.embeddings.config import EmbeddingConfig as EmbeddingConfig
    from closeknit.embeddings.config import MethodConfig as MethodConfig
    from closeknit.embeddings.estimator import SentenceEncoder as SentenceEncoder
    from closeknit.encoders.config import EncoderConfig as EncoderConfig
    from closeknit.encoders.encoder import Encoder as Encoder
    from closeknit.encoders.inference import encode_texts as encode_texts
    from closeknit.encoders.loading import load_encoder as load_encoder
    from closeknit.errors import CloseknitError as CloseknitError
    from closeknit.errors import ConfigError as ConfigError
    from closeknit.errors import DataError as DataError
    from closeknit.errors import MissingExtra as MissingExtra
    from closeknit.errors import ModelError as ModelError
    from closeknit.errors import Stopped as Stopped
    from closeknit.errors import TrainingError as TrainingError
    from closeknit.multitask.config import MultiTaskConfig as MultiTaskConfig
    from closeknit.multitask.estimator import MultiTask as MultiTask
    from closeknit.objectives import OBJECTIVES as OBJECTIVES
    from closeknit.objectives import Joint as Joint
    from closeknit.objectives import Term as Term
    from closeknit.objectives.config import ObjectiveConfig as ObjectiveConfig
    from closeknit.studies.results import Result as Result
    from closeknit.studies.run import Place as Place
    from closeknit.studies.run import run_study as run_study
    from closeknit.studies.study import Source as Source
    from closeknit.studies.study import Study as Study
    from closeknit.studies.study_file import read_study as read_study
    from closeknit.training.config import TrainConfig as TrainConfig
    from closeknit.training.loop import train as train
    from closeknit.training.task import Batch as Batch
    from closeknit.training.task import Step as Step
    from closeknit.training.task import Task as Task

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
