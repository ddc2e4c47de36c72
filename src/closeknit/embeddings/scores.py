"""Scores of an embedding, one function for each kind of evaluation. Without torch.

Everything here takes an encoder as a function from a list of texts to rows (n, d), one per text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from closeknit import metrics
from closeknit.data.evaluation_sets import LabelledPairs, Lexicon, Linking
from closeknit.data.examples import Examples
from closeknit.data.scored_pairs import ScoredPairs
from closeknit.data.splits import check_classes
from closeknit.errors import DataError, ModelError

Vectors = npt.NDArray[np.float32]
Encode = Callable[[list[str]], Vectors]


def sts_scores(encode: Encode, pairs: ScoredPairs) -> dict[str, float]:
    """Spearman and Pearson correlation of the cosines of pairs with their scores; `n` pairs.

    All pairs of a set are ranked together, as in SimCSE. If the set has groups,
    `spearman_of_groups` is the plain mean over the groups, as in some other papers. The two
    numbers differ by several points.
    """
    first, second = encode_columns(encode, [pairs.first, pairs.second])
    cosines = metrics.pair_cosines(first, second)
    scores = {
        "spearman": metrics.spearman(cosines, pairs.scores),
        "pearson": metrics.pearson(cosines, pairs.scores),
        "n": len(pairs),
    }
    if pairs.groups is not None:
        group_of = np.asarray(pairs.groups)
        per_group = [
            metrics.spearman(cosines[group_of == group], pairs.scores[group_of == group])
            for group in np.unique(group_of)
        ]
        scores["spearman_of_groups"] = float(np.mean(per_group))
    return scores


def geometry_scores(
    encode: Encode,
    pairs: ScoredPairs,
    texts: Sequence[str],
    *,
    above: float | None = None,
    most: int = 5000,
    seed: int = 0,
) -> dict[str, float]:
    """Alignment of the pairs that people find similar; uniformity and anisotropy of texts.

    Similar pairs have a score above `above`. The default is four fifths of the range of the scores:
    for STS-B, with scores from 0 to 5, it is 4. Equal texts count once. If there are more than
    `most` texts, that many are drawn with `seed`. `positives` is the number of similar pairs, and
    `texts` the number of texts.
    """
    low = float(pairs.scores.min())
    high = float(pairs.scores.max())
    limit = low + 4 / 5 * (high - low) if above is None else above
    # A score stored in single precision can miss the limit slightly: 0.8 is then 0.80000001.
    similar = np.flatnonzero(pairs.scores > limit + 1e-6 * (high - low))
    if not len(similar):
        raise DataError(
            f"{pairs.name}: no pair is scored above {limit:g}; the scores go from {low:g} to {high:g}"
        )
    chosen = list(dict.fromkeys(texts))
    if len(chosen) < 2:
        raise DataError(
            f"{len(chosen)} texts were given; uniformity needs at least two that differ"
        )
    if len(chosen) > most:
        drawn = np.random.default_rng(seed).choice(len(chosen), most, replace=False)
        chosen = [chosen[i] for i in np.sort(drawn)]
    similar_first = [pairs.first[i] for i in similar]
    similar_second = [pairs.second[i] for i in similar]
    first, second, z = encode_columns(encode, [similar_first, similar_second, chosen])
    return {
        "alignment": metrics.alignment(first, second),
        "uniformity": metrics.uniformity(z),
        "anisotropy": metrics.anisotropy(z),
        "positives": len(similar),
        "texts": len(chosen),
    }


def labelled_scores(
    encode: Encode, train: Examples, test: Examples, *, k: int = 10
) -> dict[str, float]:
    """Accuracy of the k nearest neighbours and of a linear probe on the vectors; `n` test rows."""
    for part in (train, test):
        if not len(part):
            raise DataError(f"{part.name} is empty: there is no text")
        if part.pairs is not None:
            raise DataError(
                f"{part.name} holds pairs of texts; an embedding is scored on single texts"
            )
    check_classes(train, what="a probe")
    z, test_z = encode_columns(encode, [train.texts, test.texts])
    y = np.asarray(train.required_labels)
    test_y = np.asarray(test.required_labels)
    return {
        "knn_accuracy": metrics.knn_accuracy(z, y, test_z, test_y, k=k),
        "probe_accuracy": metrics.probe_accuracy(z, y, test_z, test_y),
        "n": len(test),
    }


def retrieval_scores(encode: Encode, pairs: Sequence[tuple[str, str]]) -> dict[str, float]:
    """How well queries find their answers: mrr, recall@1, recall@5 and recall@10; `n` queries.

    Each query is compared with all answers. Equal answers are one document, and equal queries are
    one query with several answers.
    """
    if not pairs:
        raise DataError("there are no pairs of query and answer")
    answers = list(dict.fromkeys(answer for _, answer in pairs))
    number_of = {answer: number for number, answer in enumerate(answers)}
    relevant: dict[str, list[int]] = {}
    for query, answer in pairs:
        relevant.setdefault(query, []).append(number_of[answer])
    queries, documents = encode_columns(encode, [list(relevant), answers])
    scores = metrics.retrieval_scores(queries, documents, list(relevant.values()))
    return {**scores, "n": len(relevant)}


def lexicon_scores(
    encode: Encode, lexicon: Lexicon, *, neighbours: int | None = 10
) -> dict[str, float]:
    """Bilingual lexicon induction: accuracy@1 and accuracy@5 of the translations; `n` words.

    The candidates nearest to each word by CSLS over this many `neighbours` are its translations
    (`closeknit.metrics.csls`); with None they are the nearest by the plain cosine. A word is right
    if one of its translations in the dictionary is among the first 1 or 5.
    """
    number_of = {word: number for number, word in enumerate(lexicon.candidates)}
    words, candidates = encode_columns(encode, [list(lexicon.translations), lexicon.candidates])
    correct = [[number_of[word] for word in own] for own in lexicon.translations.values()]
    scores = metrics.nearest_accuracy(words, candidates, correct, neighbours=neighbours)
    return {**scores, "n": len(lexicon)}


def linking_scores(encode: Encode, linking: Linking) -> dict[str, float]:
    """Entity linking: accuracy@1 and accuracy@5 of the concepts of mentions; `n` mentions.

    Each mention is compared with all names by the cosine. It is right if one of the first 1 or 5
    names is a name of its concept.
    """
    names_of: dict[str, list[int]] = {}
    for number, ids in enumerate(linking.names.values()):
        for concept in ids:
            names_of.setdefault(concept, []).append(number)
    texts = [text for text, _ in linking.mentions]
    mentions, names = encode_columns(encode, [texts, list(linking.names)])
    correct = [
        [number for concept in ids for number in names_of.get(concept, [])]
        for _, ids in linking.mentions
    ]
    return {**metrics.nearest_accuracy(mentions, names, correct), "n": len(linking)}


def entailment_scores(encode: Encode, pairs: LabelledPairs) -> dict[str, float]:
    """The AUC of the cosine: does it tell pairs of label 1 from pairs of label 0; `n` pairs."""
    first, second = encode_columns(encode, [pairs.first, pairs.second])
    return {"auc": metrics.auc(pairs.labels, metrics.pair_cosines(first, second)), "n": len(pairs)}


def encode_columns(encode: Encode, columns: Sequence[Sequence[str]]) -> list[Vectors]:
    """The vectors of each column of texts; a text that occurs several times is encoded once."""
    texts = list(dict.fromkeys(text for column in columns for text in column))
    vectors = np.asarray(encode(texts))
    if vectors.ndim != 2 or len(vectors) != len(texts) or not vectors.shape[1]:
        raise ModelError(
            f"the encoder returned vectors of the shape {vectors.shape} for {len(texts)} texts; "
            "expected one row per text"
        )
    wrong = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(wrong):
        text = texts[int(wrong[0])]
        others = f"; {len(wrong) - 1} more vectors are not finite" if len(wrong) > 1 else ""
        raise ModelError(f"the vector that the encoder made of {text[:60]!r} is not finite{others}")
    row_of = {text: row for row, text in enumerate(texts)}
    return [vectors[[row_of[text] for text in column]] for column in columns]
