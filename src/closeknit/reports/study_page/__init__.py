"""The page of a study: `report.html` in its folder, which needs no network and no other file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from closeknit.reports.page import write_page
from closeknit.reports.study_page.contents import page_contents
from closeknit.reports.study_page.folder import StudyFolder, read_study_folder
from closeknit.studies.statistics import Line

__all__ = ["StudyFolder", "read_study_folder", "write_report"]


def write_report(folder: Path, lines: Sequence[Line] | None = None) -> Path:
    """Write `report.html` into a study folder and return its path.

    An unfinished study is shown with the runs that are finished.

    `lines` are the statistics of all results in the folder, if the caller has them; else they are
    computed.
    """
    return write_page(folder, "study.html", page_contents(read_study_folder(folder, lines)))
