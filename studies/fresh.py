"""Thirteen public data sets that had no part in choosing the recipe, as files that `closeknit compare` reads.

python studies/fresh.py FOLDER [--clones FOLDER]

Takes them from public GitHub repositories at fixed commits (with git; a clone that is there already is used), draws up to
2,500 rows of each, and writes FOLDER/NAME/all.csv. Then: CLOSEKNIT_DATA=FOLDER closeknit compare --config studies/fresh.toml
"""

from __future__ import annotations

import argparse
import csv
import io
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

ROWS = 2500

Row = tuple[str, str]  # text and label
Read = Callable[[str], str]  # the text of a file of a repository


def lines(read: Read, texts: str, labels: str) -> Iterator[Row]:
    """Two files, a row a line."""
    yield from zip(read(texts).split("\n"), read(labels).split("\n"), strict=False)


def tweets(task: str, part: str = "train") -> Callable[[Read], Iterator[Row]]:
    def rows(read: Read) -> Iterator[Row]:
        mapping = (line.split("\t") for line in read(f"datasets/{task}/mapping.txt").split("\n"))
        names = {one[0]: one[1] for one in mapping if len(one) > 1}
        for text, label in lines(
            read, f"datasets/{task}/{part}_text.txt", f"datasets/{task}/{part}_labels.txt"
        ):
            yield text, names.get(label, label)

    return rows


def intents(name: str) -> Callable[[Read], Iterator[Row]]:
    return lambda read: lines(read, f"Datasets/{name}/train/seq.in", f"Datasets/{name}/train/label")


def ag_news(read: Read) -> Iterator[Row]:
    names = dict(enumerate(read("data/ag_news_csv/classes.txt").split("\n"), 1))
    for label, title, text in csv.reader(io.StringIO(read("data/ag_news_csv/test.csv"))):
        yield f"{title} {text}", names[int(label)]


def medical_abstracts(read: Read) -> Iterator[Row]:
    names = dict(csv.reader(io.StringIO(read("medical_tc_labels.csv"))))
    for record in csv.DictReader(io.StringIO(read("medical_tc_test.csv"))):
        yield record["medical_abstract"], names[record["condition_label"]]


def hate_offensive(read: Read) -> Iterator[Row]:
    names = {"0": "hate", "1": "offensive", "2": "neither"}
    for record in csv.DictReader(io.StringIO(read("data/labeled_data.csv"))):
        yield record["tweet"], names[record["class"]]


TWEETS = "cardiffnlp/tweeteval", "4fbd22cd78421f05b1ecdb4fc5725bc7a7bd8f66"
INTENTS = "jianguoz/Few-Shot-Intent-Detection", "fa9553312b1dba54b1be0aae2d30b13171f898e5"

SETS: dict[str, tuple[tuple[str, str], Callable[[Read], Iterator[Row]]]] = {
    "tweet_emotion": (TWEETS, tweets("emotion")),
    "tweet_hate": (TWEETS, tweets("hate")),
    "tweet_irony": (TWEETS, tweets("irony")),
    "tweet_offensive": (TWEETS, tweets("offensive")),
    "tweet_sentiment": (TWEETS, tweets("sentiment", "test")),
    "tweet_emoji": (TWEETS, tweets("emoji")),
    "clinc150": (INTENTS, intents("CLINC150")),
    "hwu64": (INTENTS, intents("HWU64")),
    "snips": (INTENTS, intents("SNIPS")),
    "atis": (INTENTS, intents("ATIS")),
    "ag_news": (("mhjabreel/CharCnn_Keras", "555590db4219b1243abb1918effd6a7425a2d75f"), ag_news),
    "medical_abstracts": (
        ("sebischair/Medical-Abstracts-TC-Corpus", "70a2d9106c724729be8b3c4ddb00d1b14ec300c8"),
        medical_abstracts,
    ),
    "hate_offensive": (
        (
            "t-davidson/hate-speech-and-offensive-language",
            "cb50f7e9eb855a99abc51423bf40df0e26d6fe30",
        ),
        hate_offensive,
    ),
}


def reader(source: tuple[str, str], clones: Path) -> Read:
    """Reads files of a repository at a commit; clones it where it is not there."""
    repository, commit = source
    place = clones / repository.replace("/", "+")
    if not place.exists():
        address = f"https://github.com/{repository}"
        git("clone", "--filter=blob:none", "--bare", address, str(place))

    def read(path: str) -> str:
        shown = git("-C", str(place), "show", f"{commit}:{path}")
        return shown.decode("utf-8", errors="replace").replace("\r\n", "\n")

    return read


def git(*words: str) -> bytes:
    done = subprocess.run(["git", *words], capture_output=True)
    if done.returncode:
        sys.exit(f"git {' '.join(words)} failed:\n{done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--clones", type=Path)
    options = parser.parse_args()
    clones = options.clones or options.folder / ".clones"
    for name, (source, rows) in SETS.items():
        found = [
            (text.strip(), label.strip())
            for text, label in rows(reader(source, clones))
            if text.strip()
        ]
        drawn = np.sort(np.random.default_rng(0).permutation(len(found))[:ROWS])
        path = options.folder / name / "all.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "label"])
            writer.writerows(found[row] for row in drawn)
        classes = {label for _, label in found}
        print(
            f"{name}: {len(drawn):,} of {len(found):,} rows, {len(classes)} classes",
            file=sys.stderr,
        )


if __name__ == "__main__":
    main()
