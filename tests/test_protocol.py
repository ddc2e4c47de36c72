from __future__ import annotations

import json

import pytest

from closeknit import protocol
from closeknit.config import RunConfig
from closeknit.data import from_python
from closeknit.protocol import cross_validate, read_results


@pytest.fixture
def configs(tiny):
    def config(name):
        return RunConfig.from_dict(
            {
                "encoder": {"name": tiny(), "max_length": 16},
                "objective": {"name": name},
                "train": {"epochs": 1, "batch_size": 12, "lr": 1e-3},
            }
        )

    return {name: config(name) for name in ("cross_entropy", "triple_entropy")}


def without_time(results):
    return [{k: v for k, v in vars(result).items() if k != "seconds"} for result in results]


def test_every_cell_is_run_once_and_twice_the_same(configs, small, tmp_path):
    examples = from_python(*small, name="small")
    first = list(
        cross_validate(examples, configs, k=3, seeds=(2, 16), results=tmp_path / "a.jsonl", show=False)
    )
    again = list(cross_validate(examples, configs, k=3, seeds=(2, 16), show=False))
    assert without_time(first) == without_time(again)
    assert len({result.key for result in first}) == len(first) == 3 * 2 * 2
    assert {(r.objective, r.seed, r.fold) for r in first} == {
        (name, seed, fold) for name in configs for seed in (2, 16) for fold in range(3)
    }
    assert [vars(r) for r in read_results(tmp_path / "a.jsonl")] == [vars(r) for r in first]


def test_finished_runs_are_not_run_again(configs, small, tmp_path, monkeypatch):
    examples, path = from_python(*small), tmp_path / "results.jsonl"
    whole = list(cross_validate(examples, configs, k=3, seeds=(2,), results=path, show=False))
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:4]) + "\n" + lines[4][:40])  # killed while writing the fifth
    runs = []
    original = protocol._run
    monkeypatch.setattr(protocol, "_run", lambda *a: runs.append(a[1]) or original(*a))
    again = list(cross_validate(examples, configs, k=3, seeds=(2,), results=path, show=False))
    assert len(runs) == 2
    assert without_time(again) == without_time(whole)
    assert len(read_results(path)) == 6
    assert json.loads(path.read_text().splitlines()[0])["key"] == whole[0].key


def test_another_setting_is_another_run(configs, small, tmp_path):
    import dataclasses

    examples, path = from_python(*small), tmp_path / "results.jsonl"
    one = {"cross_entropy": configs["cross_entropy"]}
    list(cross_validate(examples, one, k=2, seeds=(2,), results=path, show=False))
    config = one["cross_entropy"]
    changed = dataclasses.replace(config, train=dataclasses.replace(config.train, lr=2e-3))
    list(cross_validate(examples, {"cross_entropy": changed}, k=2, seeds=(2,), results=path, show=False))
    assert len(read_results(path)) == 4
