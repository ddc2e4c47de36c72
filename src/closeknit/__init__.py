"""Closeknit: fine-tune text encoders with contrastive and metric-learning objectives.

Names are imported when they are first used, so that `import closeknit` and `closeknit --help` are quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_WHERE = {
    "CloseknitError": "errors",
    "ConfigError": "errors",
    "DataError": "errors",
    "Encoder": "encoder",
    "Examples": "data",
    "ModelError": "errors",
    "MultiTask": "multitask.estimator",
    "MultiTaskConfig": "multitask.config",
    "OBJECTIVES": "objectives",
    "Place": "studies.run",
    "RunConfig": "config",
    "SentenceEncoder": "embeddings.estimator",
    "Source": "studies.study",
    "Step": "tasks",
    "Study": "studies.study",
    "Task": "tasks",
    "TextClassifier": "classification.estimator",
    "TrainConfig": "train_config",
    "TrainingError": "errors",
    "load": "data",
    "load_encoder": "encoder_loading",
    "read_study": "studies.study_file",
    "run_study": "studies.run",
    "train": "training",
}

__all__ = [
    "OBJECTIVES",
    "CloseknitError",
    "ConfigError",
    "DataError",
    "Encoder",
    "Examples",
    "ModelError",
    "MultiTask",
    "MultiTaskConfig",
    "Place",
    "RunConfig",
    "SentenceEncoder",
    "Source",
    "Step",
    "Study",
    "Task",
    "TextClassifier",
    "TrainConfig",
    "TrainingError",
    "load",
    "load_encoder",
    "read_study",
    "run_study",
    "train",
]

if TYPE_CHECKING:
    from closeknit.classification.estimator import TextClassifier
    from closeknit.config import RunConfig
    from closeknit.data.catalogue import load
    from closeknit.data.examples import Examples
    from closeknit.embeddings.estimator import SentenceEncoder
    from closeknit.encoder import Encoder
    from closeknit.encoder_loading import load_encoder
    from closeknit.errors import CloseknitError, ConfigError, DataError, ModelError, TrainingError
    from closeknit.multitask.config import MultiTaskConfig
    from closeknit.multitask.estimator import MultiTask
    from closeknit.objectives import OBJECTIVES
    from closeknit.studies.study import Source, Study
    from closeknit.studies.study_file import read_study
    from closeknit.tasks import Step, Task
    from closeknit.train_config import TrainConfig
    from closeknit.training import train


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'closeknit' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f".{_WHERE[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
