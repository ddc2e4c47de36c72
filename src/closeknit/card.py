"""The model card: a README for whoever finds a model folder later."""

from __future__ import annotations

from typing import Any


def model_card(facts: dict[str, Any], metrics: dict[str, Any]) -> str:
    """What the model is, how it scored and how to use it, in Markdown."""
    run, encoder = facts["run"], facts["encoder"]
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
            lines += [
                f"| {part} rows | accuracy | weighted F1 | macro F1 |",
                "|---|---|---|---|",
                f"| {scores['n']} | "
                + " | ".join(f"{scores[name]:.4f}" for name in ("accuracy", "weighted_f1", "macro_f1"))
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
