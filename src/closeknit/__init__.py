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
    "MultiTask": "multitask",
    "MultiTaskConfig": "multitask",
    "OBJECTIVES": "objectives",
    "Place": "comparison",
    "RunConfig": "config",
    "SentenceEncoder": "estimators",
    "Source": "study",
    "Step": "tasks",
    "Study": "study",
    "Task": "tasks",
    "TextClassifier": "estimators",
    "TrainConfig": "train_config",
    "TrainingError": "errors",
    "load": "catalogue",
    "load_encoder": "encoder_loading",
    "read_study": "study",
    "run_study": "comparison",
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
    from .catalogue import load
    from .comparison import Place, run_study
    from .config import RunConfig
    from .data import Examples
    from .encoder import Encoder
    from .encoder_loading import load_encoder
    from .errors import CloseknitError, ConfigError, DataError, ModelError, TrainingError
    from .estimators import SentenceEncoder, TextClassifier
    from .multitask import MultiTask, MultiTaskConfig
    from .objectives import OBJECTIVES
    from .study import Source, Study, read_study
    from .tasks import Step, Task
    from .train_config import TrainConfig
    from .training import train


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'closeknit' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f".{_WHERE[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
