"""One encoder, several tasks: classification of texts, and classification and scoring of pairs."""

from .config import MultiTaskConfig, SharedConfig, TaskConfig, read_multitask, recipes
from .data import TaskData, load_tasks
from .estimator import MultiTask
from .fit import MultiTaskFit, fit_tasks
from .model import MultiTaskModel

__all__ = [
    "MultiTask",
    "MultiTaskConfig",
    "MultiTaskFit",
    "MultiTaskModel",
    "SharedConfig",
    "TaskConfig",
    "TaskData",
    "fit_tasks",
    "load_tasks",
    "read_multitask",
    "recipes",
]
