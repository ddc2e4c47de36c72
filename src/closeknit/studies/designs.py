"""Designs: which rows of a data set a run is trained on, and which it is tested on.

There are three designs. Every one of them gives all objectives the same rows.

- `folds`: cross-validation. Every seed draws rows and cuts them into folds.
- `official`: training rows from the training part, test rows from the test part of the data set.
- `rest`: a few rows of each class for training (`shots`), and all other rows for the test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from closeknit.console import say
from closeknit.data.catalogue import catalogue_name
from closeknit.data.distinct_texts import folds_of_distinct_texts, row_keys, text_groups
from closeknit.data.examples import Examples, Fingerprint, Rows
from closeknit.data.nearest import Mask, near_other_label, scores_near_other_label
from closeknit.data.splits import few_shot, folds, subset
from closeknit.errors import ConfigError, DataError, did_you_mean
from closeknit.studies.study import Study

# A search cuts a training fold into this many parts; the first ones are its validation parts.
INNER_FOLDS = 5

_CLASSES_NAMED = 5


@dataclass(frozen=True)
class Fold:
    """One split of a data set: rows to train on, and rows to test on."""

    data: str
    size: int
    seed: int
    number: int
    train: Rows
    test: Rows
    is_first: bool  # of its data set and size
    shots: int = 0  # training rows of each class; 0: their number per class is not fixed


# ---------------------------------------------------------------- data sets


@dataclass(frozen=True)
class StudyData:
    """The rows of the data sets of a study; each attribute maps a data set's name to something.

    With an official test part, `examples` holds the training rows and then the test rows.
    """

    examples: dict[str, Examples]
    fingerprints: dict[str, str]
    sources: dict[str, str] = field(default_factory=dict)  # what the data set was taken from
    # The name in the catalogue, empty for a file or folder of the user.
    catalogue_names: dict[str, str] = field(default_factory=dict)
    # Rows that may be trained on, and the official test rows. A data set that is missing here
    # has no official test rows, and all of its rows may be trained on.
    training: dict[str, Rows] = field(default_factory=dict)
    official: dict[str, Rows] = field(default_factory=dict)
    _groups: dict[str, Rows] = field(default_factory=dict)

    @staticmethod
    def load(study: Study, log: Callable[[str], None] = say) -> StudyData:
        """Read all data sets; refuses two of one name, two with the same rows, and unknown hard
        sets.
        """
        data = StudyData({}, {})
        config = next(iter(study.objectives.values()))
        for source in study.data:
            test_rows = 0
            if study.test == "official":
                name, rows, test_rows = source.load_with_test_part(config)
            else:
                name, rows = source.load(config)
            if name in data.examples:
                raise ConfigError(
                    f'two data sets are called {name}; give them names: {{source = "…", name = "…"}}'
                )
            data.examples[name] = rows
            data.sources[name] = source.source
            data.catalogue_names[name] = catalogue_name(source.source)
            if test_rows:
                _add_official_parts(study, data, source.source, name, test_rows, log)
        data.fingerprints.update(_fingerprints(data.examples))
        _check_hard_sets(study, data.examples)
        return data

    def training_rows(self, name: str) -> Rows:
        """The rows of a data set that may be trained on."""
        return self.training.get(name, np.arange(len(self.examples[name]), dtype=np.int64))

    def text_groups(self, name: str) -> Rows:
        """The group (R,) of each row of a data set; rows with the same text are one group."""
        if name not in self._groups:
            self._groups[name] = text_groups(self.examples[name])
        return self._groups[name]

    def cut(
        self, study: Study, name: str, rows: Rows, k: int, seed: int
    ) -> list[tuple[Rows, Rows]]:
        """Some rows of a data set as k (train, test) pairs of row numbers."""
        labels = self.examples[name].required_labels
        of_rows = [labels[row] for row in rows]
        if study.keeps_equal_texts_together:
            pairs = folds_of_distinct_texts(of_rows, self.text_groups(name)[rows], k, seed)
        else:
            pairs = folds(of_rows, k, seed, rare="keep")
        return [(rows[train], rows[test]) for train, test in pairs]

    def rows_of_classes(self, study: Study, name: str, rows: Rows) -> Counter[str]:
        """How many rows there are of each class; rows that a search keeps together count once."""
        labels = self.examples[name].required_labels
        if study.keeps_equal_texts_together:
            rows = rows[np.unique(self.text_groups(name)[rows], return_index=True)[1]]
        return Counter(labels[row] for row in rows)


def _add_official_parts(
    study: Study,
    data: StudyData,
    source: str,
    name: str,
    test_rows: int,
    log: Callable[[str], None],
) -> None:
    """Record which rows are the official test part, and which may be trained on."""
    examples = data.examples[name]
    texts = row_keys(examples)
    first_test_row = len(examples) - test_rows
    tested = set(texts[first_test_row:])
    shared = [row for row in range(first_test_row) if texts[row] in tested]
    kept = np.arange(first_test_row, dtype=np.int64)
    if shared:
        trained = set(texts[:first_test_row])
        count = sum(text in trained for text in texts[first_test_row:])
        choice = study.what_with_shared_texts(source)
        found = (
            f"{count:,} of the {test_rows:,} test rows of {name} have a text that also stands in "
            f'the training rows; the first is "{_shortened(examples.texts[shared[0]])}"'
        )
        if choice == "refuse":
            raise DataError(
                f"{found}. Remove these texts from one of the two parts, or leave them out of the "
                "training rows with --shared-texts drop"
            )
        if choice == "drop":
            kept = np.setdiff1d(kept, np.array(shared, dtype=np.int64))
            log(f"{found}; {len(shared):,} training rows are left out")
        else:
            log(f"{found}; they are kept")
    data.training[name] = kept
    data.official[name] = np.arange(first_test_row, len(examples), dtype=np.int64)


def _shortened(text: str, length: int = 60) -> str:
    one_line = " ".join(text.split())
    return one_line if len(one_line) <= length else one_line[: length - 1] + "…"


def _fingerprints(examples: Mapping[str, Examples]) -> dict[str, str]:
    """The fingerprint of each data set; data sets with the same rows are refused."""
    fingerprints: dict[str, str] = {}
    for name, rows in examples.items():
        digest = Fingerprint.of(rows).digest
        for other, known in fingerprints.items():
            if known == digest:
                raise ConfigError(
                    f"the data sets {other} and {name} hold the same rows; leave one of them out"
                )
        fingerprints[name] = digest
    return fingerprints


def _check_hard_sets(study: Study, examples: Mapping[str, Examples]) -> None:
    """Refuse hard sets of unknown data sets or classes."""
    for data, sets in study.hard_sets.items():
        if data not in examples:
            raise ConfigError(f"hard_sets names the data set {data}{did_you_mean(data, examples)}")
        classes = examples[data].classes
        for label in (label for hard_set in sets for label in hard_set):
            if label not in classes:
                raise ConfigError(
                    f"hard_sets: {data} has no class {label}{did_you_mean(label, classes)}"
                )


# ---------------------------------------------------------------- splits


def make_folds(study: Study, data: StudyData, log: Callable[[str], None] = say) -> list[Fold]:
    """The splits of every seed of every size, or number of shots, of every data set."""
    all_folds: list[Fold] = []
    for name in data.examples:
        pool = data.training_rows(name)
        if study.shots:
            for shots in sorted(study.shots):
                all_folds += _few_shot_splits(study, data, name, shots)
            continue
        for size in sorted({min(size or len(pool), len(pool)) for size in study.sizes}):
            if size < max(study.sizes) and size == len(pool):
                log(f"{name} has {size:,} rows; all of them are used")
            for seed in study.seeds:
                if study.test == "official":
                    all_folds.append(_official_split(study, data, name, size, seed, log))
                else:
                    all_folds += _folds_of_seed(study, data, name, size, seed, log)
    return all_folds


def _folds_of_seed(
    study: Study,
    data: StudyData,
    name: str,
    size: int,
    seed: int,
    log: Callable[[str], None],
) -> Iterator[Fold]:
    where = f"{name}, {size:,} rows"
    labels = data.examples[name].required_labels
    is_first_seed = seed == study.seeds[0]
    rows = subset(labels, size, seed)
    pairs = data.cut(study, name, rows, study.folds, seed)
    if is_first_seed:
        _warn_of_rare_classes(study, where, [labels[row] for row in rows], log)
        _say_equal_texts(study, where, data.text_groups(name), pairs, log)
    for number, (train, test) in enumerate(pairs):
        _check_training_rows(study, where, data.rows_of_classes(study, name, train))
        is_first = is_first_seed and number == 0
        yield Fold(name, size, seed, number, train, test, is_first)


def _say_equal_texts(
    study: Study,
    where: str,
    groups: Rows,
    pairs: Sequence[tuple[Rows, Rows]],
    log: Callable[[str], None],
) -> None:
    """Say how many rows have a text that other rows have too, and where these rows are."""
    tested = np.concatenate([groups[test] for _, test in pairs])
    _, group_of, times = np.unique(tested, return_inverse=True, return_counts=True)
    equal = int((times[group_of] > 1).sum())
    if not equal:
        return
    if study.keeps_equal_texts_together:
        log(
            f"{where}: {equal:,} rows have the text of another row, up to case and punctuation; "
            "rows with the same text are in the same fold"
        )
        return
    trained_on = sum(int(np.isin(groups[test], groups[train]).sum()) for train, test in pairs)
    log(
        f"{where}: {trained_on:,} of the {len(tested):,} test rows have a text that is among their "
        "training rows too, up to case and punctuation: the scores will be better than on new "
        "texts. A new folder keeps such rows in the same fold"
    )


def _official_split(
    study: Study,
    data: StudyData,
    name: str,
    size: int,
    seed: int,
    log: Callable[[str], None],
) -> Fold:
    """Training rows drawn from the training part, or all of them; the official test rows."""
    labels = data.examples[name].required_labels
    pool = data.training[name]
    train = pool[subset([labels[row] for row in pool], size, seed)]
    trained = Counter(labels[row] for row in train)
    is_first = seed == study.seeds[0]
    if is_first:
        _say_untrained_classes(f"{name}, {size:,} rows", labels, data.official[name], trained, log)
    counted = data.rows_of_classes(study, name, train)
    _check_training_rows(study, f"{name}, {size:,} rows", counted)
    return Fold(name, size, seed, 0, train, data.official[name], is_first)


def _few_shot_splits(study: Study, data: StudyData, name: str, shots: int) -> Iterator[Fold]:
    """For each seed: some training rows of each class, and the official test rows or the rest."""
    examples = data.examples[name]
    labels = examples.required_labels
    pool = data.training_rows(name)
    labels_of_pool = [labels[row] for row in pool]
    _check_enough_shots(name, labels_of_pool, shots)
    texts = row_keys(examples)
    for seed in study.seeds:
        train = pool[few_shot(labels_of_pool, shots, seed)]
        trained_texts = {texts[row] for row in train}
        if name in data.official:
            test = data.official[name]
        else:  # equal texts would be a test of memory
            test = np.array([row for row in pool if texts[row] not in trained_texts], np.int64)
        if len({labels[row] for row in test}) < 2:
            raise DataError(
                f"{name}: {shots} rows per class leave test rows of fewer than two classes; ask "
                "for fewer shots, or test on an official test part with --test official"
            )
        where = f"{name}, {shots} rows per class"
        _check_training_rows(study, where, data.rows_of_classes(study, name, train))
        is_first = seed == study.seeds[0]
        yield Fold(name, len(train), seed, 0, train, test, is_first, shots)


def _check_enough_shots(name: str, labels: Sequence[str], shots: int) -> None:
    """Refuse more shots than the smallest class has rows."""
    counts = Counter(labels)
    small = [(count, label) for label, count in counts.items() if count < shots]
    if small:
        count, label = min(small)
        others = f"; {len(small) - 1} more classes have too few" if len(small) > 1 else ""
        raise DataError(
            f'{name}: {shots} rows per class were asked for, and the class "{label}" has {count} '
            f"to draw from{others}; ask for at most {min(counts.values())} shots"
        )


def _warn_of_rare_classes(
    study: Study, where: str, labels: Sequence[str], log: Callable[[str], None]
) -> None:
    rare = [label for label, rows in Counter(labels).items() if rows < study.folds]
    if rare:
        log(
            f"{where}: {len(rare)} classes have fewer than {study.folds} rows; in some folds they are tested "
            f"but not trained on ({_named(rare)})"
        )


def _say_untrained_classes(
    where: str,
    labels: Sequence[str],
    test: Rows,
    trained: Mapping[str, int],
    log: Callable[[str], None],
) -> None:
    untrained = {labels[row] for row in test} - trained.keys()
    if untrained:
        log(
            f"{where}: {len(untrained)} classes of the test part have no training row and cannot "
            f"be learnt ({_named(untrained)})"
        )


def _named(labels: Sequence[str] | set[str]) -> str:
    """The first classes in the order of their names."""
    more = " …" if len(labels) > _CLASSES_NAMED else ""
    return ", ".join(sorted(labels)[:_CLASSES_NAMED]) + more


def _check_training_rows(study: Study, where: str, rows_of_class: Mapping[str, int]) -> None:
    """Refuse training rows that nothing can be learnt from or searched in, before the first
    run.
    """
    if len(rows_of_class) < 2:
        raise DataError(
            f'{where}: the training rows of a fold are all of the class "{next(iter(rows_of_class))}", '
            "because the other classes are too rare; use more rows"
        )
    searched = study.search is not None and any(map(study.space, study.objectives))
    if study.search is None or not searched or study.selection != "nested":
        return
    parts = max(INNER_FOLDS, study.search.parts)
    if max(rows_of_class.values()) < parts:
        raise DataError(
            f"{where}: a search cuts each training fold into {parts} parts, and no class has {parts} rows there; "
            "use more rows, or do not search"
        )
    if sorted(rows_of_class.values())[-2] < 2:  # its only row may be in the validation part
        raise DataError(
            f"{where}: a search holds out parts of each training fold, and only one class has two rows or more there; "
            "use more rows, or do not search"
        )


# ---------------------------------------------------------------- similar texts, other labels


class NearRows:
    """Scores on the test rows whose nearest training text has another label.

    The rows of a split are found once: the runs of all objectives on it follow each other.
    """

    def __init__(self, examples: Mapping[str, Examples]) -> None:
        self.examples = examples
        self._split: tuple[str, bytes, bytes] = ("", b"", b"")
        self._near: Mask = np.zeros(0, dtype=np.bool_)

    def rows(self, data: str, train: Rows, test: Rows) -> Mask:
        """For each test row of a split: whether its nearest training text has another label."""
        split = (data, train.tobytes(), test.tobytes())
        if split != self._split:
            examples = self.examples[data]
            self._near = near_other_label(examples.select(train), examples.select(test))
            self._split = split
        return self._near

    def scores(
        self, data: str, train: Rows, test: Rows, details: Mapping[str, Any]
    ) -> dict[str, float] | None:
        """The number of these rows and the scores on them; None without stored predictions."""
        if not details:
            return None
        expected = np.array(details["expected"], dtype=np.int64)
        predicted = np.array(details["predicted"], dtype=np.int64)
        near = self.rows(data, train, test)
        return scores_near_other_label(near, expected, predicted, list(details["labels"]))
