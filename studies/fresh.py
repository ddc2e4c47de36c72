"""Makes files of thirteen public data sets that had no part in choosing the recipe.

    python studies/fresh.py FOLDER [--clones FOLDER]
    CLOSEKNIT_DATA=FOLDER closeknit compare --config studies/fresh.toml

It clones public GitHub repositories with git (a clone that exists is used again), reads the data
sets at fixed commits, draws up to 2,500 rows of each, and writes FOLDER/NAME/all.csv.
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
Read = Callable[[str], str]  # path in a repository -> text of the file


def lines(read: Read, texts: str, labels: str) -> Iterator[Row]:
    """The rows of a file of texts and a file of labels, each with one row per line."""
    yield from zip(read(texts).split("\n"), read(labels).split("\n"), strict=False)


def tweets(task: str, part: str = "train") -> Callable[[Read], Iterator[Row]]:
    """A function that reads the rows of a task of TweetEval."""

    def rows(read: Read) -> Iterator[Row]:
        folder = f"datasets/{task}"
        mapping = [line.split("\t") for line in read(f"{folder}/mapping.txt").split("\n")]
        names = {fields[0]: fields[1] for fields in mapping if len(fields) > 1}
        texts, labels = f"{folder}/{part}_text.txt", f"{folder}/{part}_labels.txt"
        for text, label in lines(read, texts, labels):
            yield text, names.get(label, label)

    return rows


def intents(name: str) -> Callable[[Read], Iterator[Row]]:
    """A function that reads the rows of a data set of intents."""
    folder = f"Datasets/{name}/train"
    return lambda read: lines(read, f"{folder}/seq.in", f"{folder}/label")


def ag_news(read: Read) -> Iterator[Row]:
    """The titles and texts of news, with their topics."""
    names = dict(enumerate(read("data/ag_news_csv/classes.txt").split("\n"), 1))
    for label, title, text in csv.reader(io.StringIO(read("data/ag_news_csv/test.csv"))):
        yield f"{title} {text}", names[int(label)]


def medical_abstracts(read: Read) -> Iterator[Row]:
    """The abstracts, with the names of the conditions."""
    names = dict(csv.reader(io.StringIO(read("medical_tc_labels.csv"))))
    for record in csv.DictReader(io.StringIO(read("medical_tc_test.csv"))):
        yield record["medical_abstract"], names[record["condition_label"]]


def hate_offensive(read: Read) -> Iterator[Row]:
    """The tweets, with the names of the classes."""
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
    """A function that reads files of a repository at a commit; clones the repository if needed."""
    repository, commit = source
    clone = clones / repository.replace("/", "+")
    if not clone.exists():
        address = f"https://github.com/{repository}"
        git("clone", "--filter=blob:none", "--bare", address, str(clone))

    def read(path: str) -> str:
        content = git("-C", str(clone), "show", f"{commit}:{path}")
        return content.decode("utf-8", errors="replace").replace("\r\n", "\n")

    return read


def git(*words: str) -> bytes:
    """The output of a git command; ends the program if the command fails."""
    done = subprocess.run(["git", *words], capture_output=True)
    if done.returncode:
        sys.exit(f"git {' '.join(words)} failed:\n{done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def write_rows(path: Path, rows: list[Row]) -> None:
    """Write a CSV file with the columns text and label."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        writer.writerows(rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--clones", type=Path)
    options = parser.parse_args()
    clones = options.clones or options.folder / ".clones"
    for name, (source, read_rows) in SETS.items():
        read = reader(source, clones)
        rows = [(text.strip(), label.strip()) for text, label in read_rows(read) if text.strip()]
        drawn = np.sort(np.random.default_rng(0).permutation(len(rows))[:ROWS])
        write_rows(options.folder / name / "all.csv", [rows[row] for row in drawn])
        classes = {label for _, label in rows}
        print(
            f"{name}: {len(drawn):,} of {len(rows):,} rows, {len(classes)} classes", file=sys.stderr
        )


if __name__ == "__main__":
    main()
