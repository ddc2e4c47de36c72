"""A run killed with SIGKILL at random moments and resumed ends with the same bytes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import pytest

ARGUMENTS = ("--objective", "triple_entropy", "--epochs", "14", "--batch-size", "4", "--lr", "1e-3")
SETTINGS = ("encoder.max_length=16", "train.checkpoint_seconds=0", "train.validation=0.2")


def command(data, encoder, out, *more) -> list[str]:
    changes = [part for setting in SETTINGS for part in ("--set", setting)]
    return [
        sys.executable, "-m", "closeknit", "train", str(data), "--encoder", encoder, "--out", str(out),
        *ARGUMENTS, *changes, *more,
    ]  # fmt: skip


def content(folder) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()
    }


def start(arguments) -> subprocess.Popen:
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_state(process: subprocess.Popen, out, limit: float = 120.0) -> None:
    """Until the run has saved its first state, or ended."""
    begun = time.monotonic()
    while process.poll() is None and not list(out.glob("checkpoints/step-*")):
        assert time.monotonic() - begun < limit, "the run never saved a state"
        time.sleep(0.01)


def test_killed_at_three_random_places_and_resumed(tiny, small_csv, tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    subprocess.run(command(small_csv, tiny(), whole), check=True, capture_output=True)
    seed = int.from_bytes(os.urandom(4))
    moments, kills = random.Random(seed), 0
    for attempt in range(3):
        process = start(command(small_csv, tiny(), broken, *(["--resume"] if attempt else [])))
        wait_for_state(process, broken)
        time.sleep(moments.uniform(0.0, 0.4))
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.communicate()
    done = subprocess.run(
        command(small_csv, tiny(), broken, "--resume"), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert kills >= 1, "the run was over before it could be killed"
    expected, found = content(whole), content(broken)
    assert expected.keys() == found.keys()
    for name, bytes_ in expected.items():
        assert found[name] == bytes_, f"{name} differs (seed {seed}, {kills} kills)"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_signal_saves_the_state_and_says_how_to_go_on(tiny, small_csv, tmp_path, number):
    out = tmp_path / "stopped"
    # never by the clock: the only state is the one that the signal asks for
    slow = ("--set", "train.checkpoint_seconds=9999", "--set", "train.epochs=100000")
    process = start(command(small_csv, tiny(), out, *slow))
    begun = time.monotonic()
    while not (out / "checkpoints" / "run.json").exists():
        assert process.poll() is None and time.monotonic() - begun < 120, process.stderr.read()
        time.sleep(0.05)
    time.sleep(1.0)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "continue with --resume" in stderr
    assert "Traceback" not in stderr
    assert stdout == ""
    assert len(list(out.glob("checkpoints/step-*"))) == 1


def test_a_damaged_state_is_passed_over_for_the_one_before(tmp_path):
    import torch

    from closeknit.errors import ModelError
    from closeknit.training import checkpoints as training_checkpoints

    for number in (3, 3):  # the same step again takes the place of the first
        training_checkpoints.save(tmp_path, number, {"w": torch.ones(2)}, {"number": number})
    (tmp_path / "step-000000005").mkdir()
    assert [path.name for path in sorted(tmp_path.iterdir())] == [
        "step-000000003",
        "step-000000005",
    ]
    found = training_checkpoints.load(tmp_path)
    assert found is not None and found[1] == {"number": 3}
    (tmp_path / "step-000000003" / training_checkpoints.TENSORS).write_bytes(b"ab")
    with pytest.raises(ModelError, match=r"step-000000005.*is missing"):
        training_checkpoints.load(tmp_path)
