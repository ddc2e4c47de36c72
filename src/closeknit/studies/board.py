"""The progress of a study on the error stream: finished runs, time left, and the table so far."""

from __future__ import annotations

import sys
import time
from typing import Any

from closeknit.console import say
from closeknit.studies.jobs import Job, Outcome
from closeknit.studies.results import Result
from closeknit.studies.statistics import Line, summarise
from closeknit.studies.tables import mean_and_spread

SECONDS_BETWEEN_MESSAGES = 10  # about a search, where there is no terminal


class ProgressBoard:
    """Shows finished runs and time left: in a terminal with a live table, elsewhere line by
    line.
    """

    def __init__(self, runs: int, max_jobs: int, baseline: str, *, show: bool = True) -> None:
        self.runs = runs
        self.max_jobs = max_jobs
        self.baseline = baseline
        self.show = show
        self.live = show and sys.stderr.isatty()
        self.done_before = 0  # runs that earlier starts have done
        self.finished = 0  # runs that are done
        self.counted = 0  # jobs that were done since the start, or known already
        self.trained = 0  # jobs that were done since the start
        self.start = self.last_message = time.monotonic()
        self._results: list[Result] = []
        self._summarised: list[Result] = []  # the results that the lines are of
        self._lines: list[Line] = []
        self._display: Any = None

    def resume(self, done: int) -> None:
        """Count runs that earlier starts have done."""
        self.done_before = done
        self.finished = done

    def __enter__(self) -> ProgressBoard:
        if self.show and self.done_before:
            say(f"{self.done_before} of {self.runs} runs are done already")
        if self.live:
            from rich.console import Console
            from rich.live import Live

            self._display = Live(
                console=Console(stderr=True), refresh_per_second=2, get_renderable=self._shown
            )
            self._display.start()
        return self

    def __exit__(self, *details: object) -> None:
        if self._display is not None:
            self._display.stop()

    def say(self, text: str) -> None:
        """Show a message, above the table where there is one."""
        if self._display is not None:
            self._display.console.print(text, markup=False, highlight=False)
        else:
            say(text)

    def skip(self) -> None:
        """Count a job whose outcome was known already."""
        self.counted += 1

    def done(self, job: Job, outcome: Outcome, results: list[Result]) -> None:
        """Count a job and show it: a run at once, trials every few seconds."""
        is_run = not job.trial
        self.counted += 1
        self.trained += 1
        self.finished += is_run
        if is_run:
            self._results = results
        if not self.show or self.live:
            return
        now = time.monotonic()
        if is_run and outcome.error is None:
            say(
                f"{self.finished}/{self.runs}  {job.data} {job.size:,} rows  {job.objective}  "
                f"seed {job.seed}  fold {job.fold + 1}: weighted F1 {100 * outcome.scores['weighted_f1']:.2f}  "
                f"({outcome.seconds:.1f} s; {self._time_left()})"
            )
        elif now - self.last_message >= SECONDS_BETWEEN_MESSAGES:
            self.last_message = now
            say(
                f"searching: {self.counted} of at most {self.max_jobs} trainings, "
                f"{self.finished}/{self.runs} runs; {self._time_left()}"
            )

    def _time_left(self) -> str:
        """An estimate from the jobs so far; a search may need fewer jobs than planned."""
        searching = self.max_jobs != self.runs
        done_before = 0 if searching else self.done_before
        jobs_left = self.max_jobs - self.counted - done_before
        seconds_per_job = (time.monotonic() - self.start) / max(1, self.trained)
        return _duration(jobs_left * seconds_per_job) + " left" + (" at most" if searching else "")

    def _shown(self) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        results = self._results  # of another thread, which may replace it at any time
        if self._summarised is not results:
            self._lines = summarise(results, self.baseline)
            self._summarised = results
        status = f"{self.finished} of {self.runs} runs"
        if self.max_jobs != self.runs:
            status += f", {self.counted} trainings"
        if self.trained:
            status += f"; {self._time_left()}"
        bar = ProgressBar(total=max(1, self.runs), completed=self.finished, width=40)
        return Group(_table(self._lines), bar, Text(status))


def _table(lines: list[Line]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for column in ("data", "rows", "objective", "runs", "weighted F1", "gain", "p"):
        table.add_column(column, justify="left" if column in ("data", "objective") else "right")
    for line in lines:
        table.add_row(
            Text(line.data),  # as Text, because brackets in a plain string are mark-up
            f"{line.size:,}",
            Text(line.objective),
            str(line.runs),
            mean_and_spread(line),
            f"{100 * line.gain.mean:+.2f}" if line.gain else "",
            f"{line.gain.p_value:.3f}" if line.gain and line.gain.is_tested else "",
        )
    return table


def _duration(seconds: float) -> str:
    """`40 s`, `12 min` or `3 h 20 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
