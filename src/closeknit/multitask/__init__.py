"""One encoder, several tasks: classification of texts, and classification and scoring of pairs.

Names are imported when they are first used, so that reading a report's list of mistakes does not
need torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

_MODULES = {
    "MultiTask": "estimator",
    "MultiTaskConfig": "config",
    "MultiTaskFit": "fit",
    "MultiTaskModel": "model",
    "SharedConfig": "config",
    "TaskConfig": "config",
    "TaskData": "data",
    "fit_tasks": "fit",
    "load_tasks": "data",
    "read_multitask": "config",
    "recipes": "config",
}

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

if TYPE_CHECKING:
    from .config import MultiTaskConfig, SharedConfig, TaskConfig, read_multitask, recipes
    from .data import TaskData, load_tasks
    from .estimator import MultiTask
    from .fit import MultiTaskFit, fit_tasks
    from .model import MultiTaskModel


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f".{_MODULES[name]}", __name__), name)
    globals()[name] = value
    return value
