"""One encoder, several tasks: classification of texts, and classification and scoring of pairs."""

from closeknit.multitask.config import (
    MultiTaskConfig,
    SharedConfig,
    TaskConfig,
    read_multitask,
    recipes,
)
from closeknit.multitask.data import TaskData, load_tasks
from closeknit.multitask.estimator import MultiTask
from closeknit.multitask.fit import MultiTaskFit, fit_tasks
from closeknit.multitask.model import MultiTaskModel

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
