"""One encoder, several tasks: classification of texts, and classification and scoring of pairs."""

from closeknit.data.parts import Parts
from closeknit.multitask.config import (
    MultiTaskConfig,
    SharedConfig,
    TaskConfig,
    read_multitask,
    recipes,
)
from closeknit.multitask.data import load_tasks
from closeknit.multitask.estimator import MultiTask
from closeknit.multitask.fit import MultiTaskFit
from closeknit.multitask.model import MultiTaskModel

__all__ = [
    "MultiTask",
    "MultiTaskConfig",
    "MultiTaskFit",
    "MultiTaskModel",
    "Parts",
    "SharedConfig",
    "TaskConfig",
    "load_tasks",
    "read_multitask",
    "recipes",
]
