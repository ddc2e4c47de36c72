"""The model card: a README for whoever finds a model folder later."""

from __future__ import annotations

from typing import Any

# The columns of the table of a classifier's scores; older models have only the first three.
_CLASS_MEASURES = {
    "accuracy": "accuracy",
    "weighted F1": "weighted_f1",
    "macro F1": "macro_f1",
    "MCC": "mcc",
    "AUC": "auc",
}


def sentence_card(facts: dict[str, Any], metrics: dict[str, Any]) -> str:
    """The card of a sentence encoder."""
    run = facts["run"]
    encoder = facts["encoder"]
    lines = [
        "---",
        "library_name: closeknit",
        "tags: [sentence-similarity, feature-extraction, sentence-transformers, closeknit]",
        "---",
        "",
        "# Sentence encoder",
        "",
        f"Trained from `{encoder['name']}` ({encoder['pooling']} pooling) with `{run['method']['name']}` on "
        f"{metrics.get('rows', 0):,} rows by Closeknit {facts['versions']['closeknit']}.",
        "",
    ]
    points = {
        "before": metrics.get("before"),
        "after": metrics.get("validation"),
        **metrics.get("scores", {}),
    }
    known = {name: scores for name, scores in points.items() if scores}
    if known:
        keys = [key for scores in known.values() for key in scores if key != "epoch"]
        measures = list(dict.fromkeys(keys))
        lines += ["| | " + " | ".join(measures) + " |", "|---|" + "---|" * len(measures)]
        for name, scores in known.items():
            shown = [f"{scores[key]:.4f}" if key in scores else "" for key in measures]
            lines.append(f"| {name} | " + " | ".join(shown) + " |")
        lines.append("")
    lines += [
        "```python",
        "from closeknit import SentenceEncoder",
        "",
        'vectors = SentenceEncoder.load("this folder").encode(["a text", "another"])',
        "```",
        "",
        'Or `SentenceTransformer("this folder").encode(...)`, with the same vectors. The full configuration of the run is',
        "in `run.toml`.",
        "",
    ]
    return "\n".join(lines)


def multitask_card(facts: dict[str, Any], metrics: dict[str, Any]) -> str:
    """The card of a model of several tasks."""
    run = facts["run"]
    encoder = facts["encoder"]
    tasks = {
        name.removeprefix("tasks."): settings
        for name, settings in run.items()
        if name.startswith("tasks.")
    }
    lines = [
        "---",
        "library_name: closeknit",
        "tags: [multi-task, text-classification, sentence-similarity, closeknit]",
        "---",
        "",
        f"# One encoder, {len(tasks)} task{'s' * (len(tasks) != 1)}",
        "",
        f"Trained from `{encoder['name']}` with the schedule `{run['schedule']['name']}` by Closeknit "
        f"{facts['versions']['closeknit']}.",
        "",
        "| task | kind | answers | part | rows | scores |",
        "|---|---|---|---|---|---|",
    ]
    for name, settings in tasks.items():
        answers = facts["answers"][name]
        kinds = ", ".join(answers["labels"][:8]) + (" …" if len(answers["labels"]) > 8 else "")
        kinds = kinds or f"{answers['low']:g} to {answers['high']:g}"
        part = next((part for part in ("test", "validation") if name in metrics.get(part, {})), "")
        scores = metrics[part][name] if part else {}
        shown = ", ".join(
            f"{key.replace('_', ' ')} {value:.4f}"
            for key, value in scores.items()
            if isinstance(value, float)
        )
        lines.append(
            f"| {name} | {settings['kind']} | {kinds} | {part} | {scores.get('n', '')} | {shown} |"
        )
    first = next(iter(tasks))
    sample = (
        '["a text"]' if tasks[first]["kind"] == "classify" else '[("first text", "second text")]'
    )
    lines += [
        "",
        "```python",
        "from closeknit import MultiTask",
        "",
        'model = MultiTask.load("this folder")',
        f'model.predict("{first}", {sample})',
        "```",
        "",
        "The full configuration of the run is in `run.toml`, all scores in `metrics.json`, wrong answers in `mistakes/`.",
        "",
    ]
    return "\n".join(lines)


def model_card(facts: dict[str, Any], metrics: dict[str, Any]) -> str:
    """What the model is, how it scored and how to use it, in Markdown."""
    run = facts["run"]
    encoder = facts["encoder"]
    labels = facts["labels"]
    shown = ", ".join(labels[:20]) + (f" and {len(labels) - 20} more" if len(labels) > 20 else "")
    sample = '[("first text", "second text")]' if facts["paired"] else '["a text"]'
    lines = [
        "---",
        "library_name: closeknit",
        "tags: [text-classification, closeknit]",
        "---",
        "",
        f"# {len(labels)}-class text classifier",
        "",
        f"Fine-tuned from `{encoder['name']}` with the objective `{run['objective']['name']}` by Closeknit "
        f"{facts['versions']['closeknit']}.",
        "",
        f"Labels: {shown}",
        "",
    ]
    for part in ("test", "validation"):
        scores = metrics.get(part)
        if scores:
            known = {title: name for title, name in _CLASS_MEASURES.items() if name in scores}
            lines += [
                f"| {part} rows | " + " | ".join(known) + " |",
                "|---|" + "---|" * len(known),
                f"| {scores['n']} | "
                + " | ".join(f"{scores[name]:.4f}" for name in known.values())
                + " |",
                "",
            ]
    lines += [
        "```python",
        "from closeknit import TextClassifier",
        "",
        'classifier = TextClassifier.load("this folder")',
        f"classifier.predict({sample})",
        "```",
        "",
        "The full configuration of the run is in `run.toml`, all scores in `metrics.json`.",
        "",
    ]
    return "\n".join(lines)
