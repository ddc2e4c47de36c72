"""A training run in a folder: from a data source and a configuration to a saved, scored model."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from . import catalogue, checkpoint
from .checkpoint import lock_folder, no_space_explained, read_json, write_json
from .config import RunConfig
from .data import DataSet, Examples, Fingerprint, split, spoken
from .embedding import EmbeddingFit, check_data
from .embedding_config import EmbeddingConfig
from .embedding_scores import ScoredPairs
from .errors import ConfigError, ModelError, Stopped
from .fitting import Fit
from .mining import mine_negatives
from .model import ALONE, IDENTITY, KINDS, LOCK, STATES, is_ours, read_facts, remove_model
from .model_files import MAIN, METRICS
from .multitask import MultiTaskConfig, MultiTaskFit, MultiTaskModel, TaskData, load_tasks
from .multitask.data import fingerprint
from .multitask.fit import pretraining_sentences
from .processes import World, leave, this_world, wait_for_all
from .progress import follow, say
from .sentence_model import SentenceModel, is_sentence_encoder
from .sentences import Sentences
from .settings import Configuration, differences


@dataclasses.dataclass(frozen=True)
class Parts:
    """The rows a run learns from, chooses by and is scored on."""

    train: Examples
    validation: Examples | None = None
    test: Examples | None = None


def parts_of(data: DataSet, config: RunConfig, *, tell: bool = True) -> Parts:
    """The parts of a data set; where it has neither test nor validation, a share of its rows is held out."""
    training, validation, test = data.training, data.parts.get("validation"), data.parts.get("test")
    share = config.data.test
    if test is None and validation is None and share > 0:
        kept, held_out = split(training.required_labels, share, config.train.seed)
        if tell:
            say(
                f"{data.name} has no test part: {len(held_out)} of its {len(training)} rows are held out to score "
                "the model (data.test=0 trains on all)"
            )
        training, test = training.select(kept), training.select(held_out)
    if tell and test is not None:
        known = set(zip(training.texts, training.pairs or training.texts, strict=True))
        seen = sum(text in known for text in zip(test.texts, test.pairs or test.texts, strict=True))
        if seen:
            say(
                f"{seen} of the {len(test)} test rows are among the training rows too, word for word: "
                "the score will be better than on new texts"
            )
    return Parts(training, validation, test)


def train_in_folder(
    source: str, config: RunConfig, out: Path, *, resume: bool = False, overwrite: bool = False
) -> dict[str, Any]:
    """Train on a file, folder or catalogue name, save the model in `out`, and return its scores.

    Of several processes only the first returns scores; the others return nothing.
    """
    world = _begin(out, resume, overwrite)
    parts = parts_of(catalogue.load(source, config.data), config, tell=world.main)
    identity = {
        "kind": "text_classifier",
        "run": config.to_dict(),
        "data": dataclasses.asdict(Fingerprint.of(parts.train, parts.validation, parts.test)),
    }

    def build(states: Path) -> Fit:
        fit = Fit(parts.train, config, validation=parts.validation, folder=states, resume=resume, world=world)
        if parts.test is not None:
            fit.model.check(parts.test)
        if fit.names and world.main:
            some = ", ".join(spoken(name) for name in fit.names[:3]) + (", …" if len(fit.names) > 3 else "")
            say(f"class names are learnt as texts too: {some} (train.class_names={config.train.class_names})")
        return fit

    def score(fit: Fit) -> None:
        if fit.training.number < fit.steps and world.main:
            say(f"stopped early after {fit.loop.patience} evaluations without gain; the best epoch is kept")
        if parts.test is not None:
            fit.model.metrics["test"] = fit.model.evaluate(parts.test)
        fit.model.metrics["rows"] = fit.rows
        fit.model.metrics["asked"] = identity["run"]  # before settings that were left open were settled
        fit.model.metrics["steps"] = fit.training.number

    metrics = _in_folder(out, identity, config.objective.name, build, score, resume, overwrite, world)
    leave(world)
    return metrics


def embed_in_folder(
    sentences: Sentences,
    config: EmbeddingConfig,
    out: Path,
    *,
    validation: ScoredPairs | None = None,
    mine: bool = False,
    resume: bool = False,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Learn a sentence encoder from texts, pairs or triplets, save it in `out`, and return how it came out.

    With `mine`, pairs get a hard negative each, found by the encoder as it is. Of several processes only the first returns
    anything.
    """
    world = _begin(out, resume, overwrite)
    check_data(sentences, config.method, mine=mine)
    if world.main and is_sentence_encoder(config.encoder.name):
        say(
            f"{config.encoder.name or 'the bundled encoder'} is a trained sentence encoder already: a little more text can make "
            "it worse. Validate on scored pairs (--validation), and compare with `closeknit evaluate-embeddings`"
        )
    if mine:
        if world.main:
            say(f"mining a hard negative for each of {len(sentences):,} pairs")
        settings = config.encoder
        start = SentenceModel.untrained(
            settings.name, pooling=settings.pooling, max_length=settings.max_length
        )
        sentences = mine_negatives(start.encode, sentences)
    groups = [str(group) for group in sentences.groups]
    parts = [Examples(column, labels=groups) for column in sentences.columns]
    if validation is not None:
        parts.append(Examples(validation.first, validation.second, scores=validation.scores.tolist()))
    data = {"rows": len(sentences), "digest": Fingerprint.of(*parts).digest}
    identity = {"kind": "sentence_encoder", "run": config.to_dict(), "data": data}

    def build(states: Path) -> EmbeddingFit:
        return EmbeddingFit(
            sentences, config, validation=validation, folder=states, resume=resume, world=world
        )

    metrics = _in_folder(out, identity, config.method.name, build, lambda fit: None, resume, overwrite, world)
    leave(world)
    return metrics


def multitask_in_folder(
    config: MultiTaskConfig,
    out: Path,
    *,
    alone: bool = False,
    resume: bool = False,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Train one encoder for several tasks, save it in `out`, and return its scores.

    With `alone` every task is first trained by itself, in the same way, in `out/alone/TASK`. Of several processes only the first
    returns scores.
    """
    world = _begin(out, resume, overwrite)
    tell = say if world.main else lambda text: None
    data = load_tasks(config, tell=tell)
    sentences = pretraining_sentences(config, data, tell=tell)
    identity = _identity_of(data, config, sentences)
    if world.main and resume:  # before the single tasks, which may take long
        _check_resumable(out, identity, tell=lambda text: None)
    if world.main and overwrite:
        with _held(out):
            _remove_single_models(out / ALONE)
    singles: dict[str, Any] = {}
    for name in config.tasks if alone and len(config.tasks) > 1 else ():
        tell(f"{name} alone")
        rows, single = {name: data[name]}, config.only(name)
        known = _identity_of(rows, single, sentences)
        fitted = _multitask(rows, single, sentences, known, out / ALONE / name, resume, overwrite, world)
        singles[name] = {
            part: fitted[part][name] for part in ("validation", "test") if name in fitted.get(part, {})
        }
    metrics = _multitask(data, config, sentences, identity, out, resume, overwrite, world, singles)
    if world.main and singles and "alone" not in metrics:  # the run had been finished before, without them
        model = MultiTaskModel.load(out)
        model.metrics["alone"] = metrics["alone"] = singles
        model.save(out)
    leave(world)
    return metrics


def _identity_of(
    data: dict[str, TaskData], config: MultiTaskConfig, sentences: Sentences | None
) -> dict[str, Any]:
    rows = fingerprint(data)
    if sentences is not None:
        texts = (Examples(column) for column in sentences.columns)
        rows["pretraining"] = Fingerprint.of(*texts).digest
    return {"kind": "multi_task", "run": config.to_dict(), "data": rows}


def _multitask(
    data: dict[str, TaskData],
    config: MultiTaskConfig,
    sentences: Sentences | None,
    identity: Mapping[str, Any],
    out: Path,
    resume: bool,
    overwrite: bool,
    world: World,
    singles: dict[str, Any] | None = None,
) -> dict[str, Any]:
    def build(states: Path) -> MultiTaskFit:
        return MultiTaskFit(data, config, sentences=sentences, folder=states, resume=resume, world=world)

    def score(fit: MultiTaskFit) -> None:
        if fit.training.number < fit.training.steps and world.main:
            say(f"stopped early after {fit.loop.patience} evaluations without gain; the best one is kept")
        fit.model.analyse(data)
        if singles:
            fit.model.metrics["alone"] = singles

    label = " + ".join(config.tasks)
    return _in_folder(out, identity, label, build, score, resume, overwrite, world)


# ---------------------------------------------------------------- what all runs in folders share


def _begin(out: Path, resume: bool, overwrite: bool) -> World:
    """This run's processes; refuses what cannot go together, and a folder that is taken."""
    if resume and overwrite:
        raise ConfigError(
            "--resume and --overwrite cannot go together: one keeps the run, the other discards it"
        )
    world = this_world()
    if world.main:
        check_folder(out, resume=resume, overwrite=overwrite)
    return world


AFit = TypeVar("AFit", Fit, EmbeddingFit, MultiTaskFit)


def _in_folder(
    out: Path,
    identity: Mapping[str, Any],
    label: str,
    build: Callable[[Path], AFit],
    finish: Callable[[AFit], None],
    resume: bool,
    overwrite: bool,
    world: World,
) -> dict[str, Any]:
    """Build a fit, train it to its end with its states in the folder, save its model there, and return its metrics."""
    states = out / STATES
    if world.main and resume:
        _check_resumable(out, identity)
    if resume and (out / MAIN).exists() and not (states / IDENTITY).exists():
        if not world.main:
            return {}
        say(f"the run in {out} is finished already")
        metrics: dict[str, Any] = read_json(out / METRICS)
        return metrics
    fit, trained = build(states), False
    with contextlib.ExitStack() as stack:
        if world.main:
            with no_space_explained(out):
                states.mkdir(parents=True, exist_ok=True)
                lock = lock_folder(states / LOCK, out)
                stack.enter_context(lock or contextlib.nullcontext())
                if overwrite:  # the old model stays until the new one takes its place
                    checkpoint.clear(states, (IDENTITY,))
                write_json(states / IDENTITY, identity)
        wait_for_all(world)
        signals = stack.enter_context(_StopSignals())
        try:
            for step in follow(fit, label):
                if signals.received:
                    fit.save_state()
                    raise Stopped(
                        f"stopped after step {step.number} of {fit.steps}; the state is saved, go on with --resume"
                    )
            trained = signals.received = True  # no step is in progress: a signal ends what is left at once
            fit.model.metrics["data"] = identity["data"]
            finish(fit)
            if world.main:
                fit.model.save(out)
        except KeyboardInterrupt:
            if not trained:
                raise Stopped("stopped within a step; --resume goes on from the state saved last") from None
            fit.save_state()
            raise Stopped(
                "stopped after the last step, before the model was saved; the state is, go on with --resume"
            ) from None
        if world.main:
            checkpoint.clear(states, (LOCK, IDENTITY))
    return fit.model.metrics if world.main else {}


def check_folder(out: Path, *, resume: bool, overwrite: bool) -> None:
    """Refuse a folder that holds something, unless it is ours and the user said what to do with it."""
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file; name a folder with --out")
    held = sorted(path.name for path in out.iterdir()) if out.is_dir() else []
    if not held:
        return
    if not is_ours(out):
        raise ConfigError(
            f"{out} holds {held[0]} and is no model folder; it is left alone. Name another with --out"
        )
    if not (resume or overwrite):
        raise ConfigError(f"{out} exists already; --resume goes on with it, --overwrite replaces it")


@contextlib.contextmanager
def _held(out: Path) -> Iterator[None]:
    """Refuse a folder in which another run is at work."""
    handle = lock_folder(out / STATES / LOCK, out) if (out / STATES).is_dir() else None
    try:
        yield
    finally:
        if handle is not None:
            handle.close()


def _remove_single_models(folder: Path) -> None:
    """Remove the models that were trained on one task each; files of any other origin stay."""
    if folder.is_symlink() or not folder.is_dir():
        return
    for single in list(folder.iterdir()):
        remove_model(single)
    with contextlib.suppress(OSError):
        folder.rmdir()


def _check_resumable(out: Path, identity: Mapping[str, Any], *, tell: Callable[[str], None] = say) -> None:
    """Refuse to go on with a run, finished or not, that is another one than this."""
    states = out / STATES
    if (out / MAIN).exists() and not (states / IDENTITY).exists():
        facts = read_facts(out, identity["kind"])
        metrics = read_json(out / METRICS)
        run = metrics.get("asked", facts.get("run", {}))
        _refuse_changes({"run": run, "data": metrics.get("data", identity["data"])}, identity)
        return
    if not (states / IDENTITY).exists():
        tell(f"nothing to resume in {states.parent}; starting from the beginning")
        return
    before = read_json(states / IDENTITY)
    if not isinstance(before, dict) or not {"run", "data"} <= before.keys():
        raise ModelError(f"{states / IDENTITY} is damaged; begin again with --overwrite")
    if before.get("kind", identity["kind"]) != identity["kind"]:
        raise ConfigError(f"the run in {out} trains {KINDS[before['kind']]}, not {KINDS[identity['kind']]}")
    _refuse_changes(before, identity)


_CONFIGURATIONS: dict[str, type[Configuration]] = {
    "text_classifier": RunConfig,
    "sentence_encoder": EmbeddingConfig,
    "multi_task": MultiTaskConfig,
}


def _refuse_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    changes = differences(_CONFIGURATIONS[now["kind"]], before["run"], now["run"])
    if changes:
        raise ConfigError(
            f"--resume with another configuration: {'; '.join(changes)}. Use the same, or --overwrite"
        )
    if before["data"] != now["data"]:
        raise ConfigError(
            f"--resume with other data: the run began with {before['data'].get('rows')} rows, now there are "
            f"{now['data']['rows']}, or their texts or labels changed; use the same data, or --overwrite"
        )


class _StopSignals:
    """Ctrl-C and SIGTERM end a run after the step in progress; a second one ends it at once."""

    def __init__(self) -> None:
        self.received = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received:
            raise KeyboardInterrupt
        self.received = True

    def __exit__(self, *details: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
