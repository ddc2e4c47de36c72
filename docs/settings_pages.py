"""The tables of settings in the pages, and the JSON schemas for editors, made from the source."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from closeknit.classification.config import DataConfig, RunConfig
from closeknit.embeddings.config import EmbeddingConfig, MethodConfig
from closeknit.encoders.config import EncoderConfig
from closeknit.multitask.config import MultiTaskConfig, PretrainConfig, SharedConfig, TaskConfig
from closeknit.settings import SettingsTable, json_schema, settings_markdown
from closeknit.studies.search import SearchConfig
from closeknit.studies.study import Source, StudyTable
from closeknit.studies.study_file import study_schema
from closeknit.training.config import TrainConfig
from closeknit.training.schedules import ScheduleConfig

DOCS = Path(__file__).resolve().parent

# The name in the marker of a page, and the table of settings that stands below it.
TABLES: dict[str, type[SettingsTable]] = {
    "data": DataConfig,
    "encoder": EncoderConfig,
    "method": MethodConfig,
    "pretrain": PretrainConfig,
    "schedule": ScheduleConfig,
    "search": SearchConfig,
    "shared": SharedConfig,
    "study": StudyTable,
    "study.data": Source,
    "tasks": TaskConfig,
    "train": TrainConfig,
}
MARKED = re.compile(r"(<!-- settings: ([\w.]+) -->\n).*?(<!-- end of settings -->)", re.S)


def pages(folder: Path = DOCS) -> Iterator[tuple[Path, str]]:
    """The pages with tables of settings, and the text that each should have."""
    for page in sorted(folder.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        if MARKED.search(text):
            yield page, MARKED.sub(_filled, text)


def _filled(found: re.Match[str]) -> str:
    return f"{found[1]}{settings_markdown(TABLES[found[2]])}\n{found[3]}"


def schemas(folder: Path = DOCS) -> Iterator[tuple[Path, str]]:
    """The files with JSON schemas, and the text that each should have."""
    made = {
        "run.json": json_schema(RunConfig, "A run of closeknit train"),
        "embed.json": json_schema(EmbeddingConfig, "A run of closeknit embeddings"),
        "multitask.json": json_schema(MultiTaskConfig, "A study of closeknit multitask"),
        "study.json": study_schema(),
    }
    for name, schema in made.items():
        yield folder / "schemas" / name, json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def write(folder: Path = DOCS) -> None:
    """Bring the tables of the pages and the schemas up to date."""
    (folder / "schemas").mkdir(exist_ok=True)
    for path, text in [*pages(folder), *schemas(folder)]:
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
