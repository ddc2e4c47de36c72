"""The page of a model of several tasks: `report.html` in its folder, without network access."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from closeknit.reports.multitask_errors import errors_view
from closeknit.reports.multitask_folder import MultitaskFolder, TaskReport, read_multitask_folder
from closeknit.reports.multitask_gradient_agreement import gradients_view
from closeknit.reports.multitask_learning_curves import curves_view
from closeknit.reports.multitask_scores import score_table, summary
from closeknit.reports.multitask_training_setup import setup_view
from closeknit.reports.page import counted, write_page

__all__ = ["MultitaskFolder", "TaskReport", "read_multitask_folder", "write_multitask_report"]


def write_multitask_report(folder: Path) -> Path:
    """Write `report.html` into the folder of a model of several tasks and return its path."""
    return write_page(folder, "multitask.html", page_contents(read_multitask_folder(folder)))


def page_contents(trained: MultitaskFolder) -> dict[str, Any]:
    """The values of the template `multitask.html`."""
    names = [task.name for task in trained.tasks]
    return {
        "title": f"{counted(len(names), 'task')} on one encoder: {', '.join(names)}",
        "summary": summary(trained),
        "table": score_table(trained),
        "curves": curves_view(trained),
        "gradients": gradients_view(trained),
        "errors": errors_view(trained),
        "method": setup_view(trained),
    }
