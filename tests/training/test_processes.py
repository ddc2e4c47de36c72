"""Several processes under `accelerate launch` give the numbers of one."""

from __future__ import annotations

import json
import os
import platform
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from closeknit.classification.config import RunConfig
from closeknit.classification.fit import ClassifierFit
from closeknit.data import from_python
from closeknit.training.processes import World, return_memory

SCRIPT = """
import json, sys
from closeknit.classification.config import RunConfig
from closeknit.data import from_python
from closeknit.classification.fit import ClassifierFit

settings, texts, labels, out = json.loads(open(sys.argv[1]).read())
fit = ClassifierFit(from_python(texts, labels), RunConfig.from_dict(settings))
steps = [[step.loss, step.grad_norm, *step.terms.values()] for step in fit]
if fit.world.main:
    from safetensors.torch import save_file
    save_file({k: v.contiguous().clone() for k, v in fit.training.learners.state_dict().items()}, out + ".safetensors")
    open(out, "w").write(json.dumps({"steps": steps, "size": fit.world.size, "history": fit.session.history}))
"""


EMBEDDING = """
import json, sys
from closeknit.embeddings.fit import EmbeddingFit
from closeknit.embeddings.config import with_recipe
from closeknit.data import sentences_from

settings, texts, second, out = json.loads(open(sys.argv[1]).read())
rows = sentences_from(list(zip(texts, second)) if settings["method"]["name"] == "multiple_negatives" else texts)
fit = EmbeddingFit(rows, with_recipe(settings, len(rows.columns)))
steps = [[step.loss, step.grad_norm] for step in fit]
if fit.world.main:
    from safetensors.torch import save_file
    save_file({k: v.contiguous().clone() for k, v in fit.training.learners.state_dict().items()}, out + ".safetensors")
    open(out, "w").write(json.dumps({"steps": steps, "size": fit.world.size}))
"""


TASKS = """
import json, sys
from closeknit.data import Examples
from closeknit.multitask.config import MultiTaskConfig; from closeknit.multitask.fit import MultiTaskFit
from closeknit.data.splits import Parts

settings, texts, labels, out = json.loads(open(sys.argv[1]).read())
second = texts[1:] + texts[:1]
same = ["yes" if a == b else "no" for a, b in zip(labels, labels[1:] + labels[:1])]
data = {"kind": Parts(Examples(texts, labels=labels)), "same": Parts(Examples(texts[:11], second[:11], same[:11]))}
fit = MultiTaskFit(data, MultiTaskConfig.from_dict(settings))
agreement = list(fit.training.agreement().values())
steps = [[step.loss, step.grad_norm, *agreement] for step in fit]
if fit.world.main:
    from safetensors.torch import save_file
    save_file({k: v.contiguous().clone() for k, v in fit.training.learners.state_dict().items()}, out + ".safetensors")
    open(out, "w").write(json.dumps({"steps": steps, "size": fit.world.size}))
"""


def free_port() -> int:
    """One that nothing uses now; a port of the launch before may not be free again yet."""
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return int(asked.getsockname()[1])


def launch(tmp_path, processes: int, settings, small, code: str = SCRIPT):
    """Each process under an `accelerate launch --cpu` of its own, which is how it starts them
    without MPI; one alone as it is.
    """
    script, job, out = (
        tmp_path / "job.py",
        tmp_path / f"job{processes}.json",
        tmp_path / f"out{processes}.json",
    )
    script.write_text(code + "\nfrom closeknit.training.processes import leave\nleave(fit.world)\n")
    job.write_text(json.dumps([settings, *small, str(out)]))
    arguments = [
        sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", str(processes),
        "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no",
        "--main_process_port", str(free_port()), str(script), str(job),
    ]  # fmt: skip
    if processes == 1:
        arguments = [sys.executable, str(script), str(job)]
    running = []
    for rank in range(processes):
        place = (
            {"WORLD_SIZE": str(processes), "RANK": str(rank), "LOCAL_RANK": str(rank)}
            if processes > 1
            else {}
        )
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **place}
        running.append(
            subprocess.Popen(
                arguments,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
            )
        )
    for process in running:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    return json.loads(out.read_text())


# Dropout would differ between one process and two. Two views of a text then need another reason to
# differ: a masked span.
MASKED = {"second_view": "span"}


@pytest.mark.parametrize("objective", ["auto", "triple_entropy"])
def test_two_processes_give_the_loss_curve_of_one(tiny, small, tmp_path, objective):
    from safetensors.torch import load_file

    # 35 rows in batches of 17: the last batch of an epoch has one row, so one process has none
    small = (small[0][:35], small[1][:35])
    settings = {
        "encoder": {"name": tiny(), "max_length": 16, "dropout": 0.0},
        "objective": {"name": objective, **(MASKED if objective == "auto" else {})},
        "train": {"epochs": 3, "batch_size": 17, "lr": 1e-3, "validation": 0.0},
    }
    one, two = (launch(tmp_path, n, settings, small) for n in (1, 2))
    assert (one["size"], two["size"]) == (1, 2)
    assert len(one["steps"]) == len(two["steps"]) == 9
    for a, b in zip(one["steps"], two["steps"], strict=True):
        assert a == pytest.approx(b, rel=2e-4)
    end_one, end_two = (load_file(tmp_path / f"out{n}.json.safetensors") for n in (1, 2))
    for key, value in end_one.items():
        assert torch.allclose(value, end_two[key], atol=1e-4), key


@pytest.mark.parametrize(("method", "chunk"), [("simcse", 3), ("multiple_negatives", 0)])
def test_negatives_come_from_all_processes(tiny, small, tmp_path, method, chunk):
    from safetensors.torch import load_file

    texts = list(dict.fromkeys(small[0]))
    settings = {
        "encoder": {"name": tiny(), "max_length": 16, "dropout": 0.0},
        "method": {"name": method, **(MASKED if method == "simcse" else {})},
        "train": {"epochs": 2, "batch_size": 7, "lr": 1e-3, "chunk_size": chunk},
    }
    second = [f"please {text}" for text in texts]
    one, two = (launch(tmp_path, n, settings, (texts, second), EMBEDDING) for n in (1, 2))
    assert (one["size"], two["size"]) == (1, 2)
    for a, b in zip(one["steps"], two["steps"], strict=True):
        assert a == pytest.approx(b, rel=2e-4, abs=1e-5)
    end_one, end_two = (load_file(tmp_path / f"out{n}.json.safetensors") for n in (1, 2))
    for key, value in end_one.items():
        assert torch.allclose(value, end_two[key], atol=1e-4), key


def test_gradient_surgery_of_two_processes_is_that_of_one(tiny, small, tmp_path):
    from safetensors.torch import load_file

    settings = {
        "tasks": {
            "kind": {"kind": "classify", "data": "x"},
            "same": {"kind": "pair_classify", "data": "x"},
        },
        "encoder": {"name": tiny(), "max_length": 24, "dropout": 0.0},
        "schedule": {"name": "together", "surgery": "pcgrad"},
        "shared": {"dropout": 0.0},
        "train": {"epochs": 2, "batch_size": 5, "lr": 1e-3, "validation": 0.0},
    }
    rows = (small[0][:16], small[1][:16])  # the last batches have one row: a process has none of it
    one, two = (launch(tmp_path, n, settings, rows, TASKS) for n in (1, 2))
    assert (one["size"], two["size"]) == (1, 2)
    for a, b in zip(one["steps"], two["steps"], strict=True):
        assert a == pytest.approx(b, rel=1e-3, abs=1e-5)
    end_one, end_two = (load_file(tmp_path / f"out{n}.json.safetensors") for n in (1, 2))
    for key, value in end_one.items():
        assert torch.allclose(value, end_two[key], atol=2e-4), key


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="only glibc can be asked to return memory"
)
def test_freed_memory_goes_back_to_the_system():
    def resident() -> int:  # MiB
        return (
            int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20
        )

    pieces = [bytearray(b"x" * 2**16) for _ in range(4000)]  # 250 MiB
    kept = pieces[::50]  # what lives longer stands between what is freed
    del pieces
    before = resident()
    return_memory()
    assert before - resident() > 150
    assert len(kept) == 80


def test_a_training_on_a_cpu_begins_by_returning_memory(tiny, small, monkeypatch):
    asked: list[bool] = []
    monkeypatch.setattr("closeknit.training.loop.return_memory", lambda: asked.append(True))
    ClassifierFit(
        from_python(*small),
        RunConfig.from_dict({"encoder": {"name": tiny(), "max_length": 16}}),
        world=World(torch.device("cpu")),
    )
    assert asked == [True]
