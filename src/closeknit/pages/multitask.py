"""A folder of several tasks -> one page: curves, how the gradients agree, single-task against multi-task, mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .tasks.curves import curves_view, gradients_view
from .tasks.errors import errors_view
from .tasks.made import made_view
from .tasks.reading import counted, read_trained
from .tasks.result import score_table, summary


def multitask_contents(folder: Path) -> dict[str, Any]:
    """What the page of a folder shows; refuses a folder that holds no model of several tasks."""
    trained = read_trained(folder)
    names = [task.name for task in trained.tasks]
    return {
        "title": f"{counted(len(names), 'task')} on one encoder: {', '.join(names)}",
        "summary": summary(trained),
        "table": score_table(trained),
        "curves": curves_view(trained),
        "gradients": gradients_view(trained),
        "errors": errors_view(trained),
        "made": made_view(trained),
    }
