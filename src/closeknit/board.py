"""The progress of a study on the error stream: runs done, time left, and the table so far."""

from __future__ import annotations

import sys
import time
from typing import Any

from closeknit.console import say
from closeknit.protocol import Job, Outcome, Result
from closeknit.report import summarise


class Board:
    """How a study stands: runs done, time left and the table so far; live in a terminal, lines elsewhere."""

    def __init__(self, runs: int, done: int, jobs: int, *, show: bool = True) -> None:
        self.runs, self.before, self.finished, self.jobs = runs, done, done, jobs
        self.counted = 0  # jobs done or known since the start
        self.worked = 0  # jobs done since the start
        self.show, self.live = show, show and sys.stderr.isatty()
        self.begun = self.told = time.monotonic()
        self.rows: list[Result] = []
        self.baseline = ""
        self._live: Any = None

    def __enter__(self) -> Board:
        if self.show and self.before:
            say(f"{self.before} of {self.runs} runs are done already")
        if self.live:
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(stderr=True), refresh_per_second=2, get_renderable=self._shown)
            self._live.start()
        return self

    def __exit__(self, *details: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False)
        else:
            say(text)

    def skip(self) -> None:
        self.counted += 1

    def done(self, job: Job, outcome: Outcome, final: bool, rows: list[Result], baseline: str) -> None:
        """Count a job; tell of a run, and of trials now and then."""
        self.counted += 1
        self.worked += 1
        self.finished += final
        self.rows, self.baseline = rows, baseline
        if not self.show or self.live:
            return
        now = time.monotonic()
        if final and outcome.error is None:
            say(
                f"{self.finished}/{self.runs}  {job.data} {job.size:,} rows  {job.objective}  "
                f"seed {job.seed}  fold {job.fold + 1}: weighted F1 {100 * outcome.scores['weighted_f1']:.2f}  "
                f"({outcome.seconds:.1f} s; {self._left()})"
            )
        elif now - self.told >= 10:
            self.told = now
            say(
                f"searching: {self.counted} of at most {self.jobs} trainings, {self.finished}/{self.runs} runs; {self._left()}"
            )

    def _left(self) -> str:
        done_before = self.before if self.jobs == self.runs else 0
        left = (
            (self.jobs - self.counted - done_before) * (time.monotonic() - self.begun) / max(1, self.worked)
        )
        return _duration(left) + " left" + (" at most" if self.jobs != self.runs else "")

    def _shown(self) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False)
        for column in ("data", "rows", "objective", "runs", "weighted F1", "gain", "p"):
            table.add_column(column, justify="left" if column in ("data", "objective") else "right")
        for line in summarise(self.rows, self.baseline) if self.rows else []:
            gain = f"{100 * line.gain.mean:+.2f}" if line.gain else ""
            p = f"{line.gain.p_value:.3f}" if line.gain and line.runs > 1 else ""
            score = f"{100 * line.f1_mean:.2f} ± {100 * line.f1_std:.2f}"
            data, objective = Text(line.data), Text(line.objective)  # brackets in a name are no mark-up
            table.add_row(data, f"{line.size:,}", objective, str(line.runs), score, gain, p)
        status = f"{self.finished} of {self.runs} runs" + (
            f", {self.counted} trainings" if self.jobs != self.runs else ""
        )
        left = f"; {self._left()}" if self.worked else ""
        bar = ProgressBar(total=max(1, self.runs), completed=self.finished, width=40)
        return Group(table, bar, Text(status + left))


def _duration(seconds: float) -> str:
    """`40 s`, `12 min` or `3 h 20 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
