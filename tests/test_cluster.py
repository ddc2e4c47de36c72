"""A study on a real Ray cluster of two nodes on this machine, one of which is killed in the middle."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from closeknit.comparison import Place, run_study
from closeknit.config import RunConfig
from closeknit.errors import ConfigError
from closeknit.json_lines import read_json_lines
from closeknit.study import Source, Study

pytest.importorskip("ray", reason="needs the extra cluster")
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own


def rows_of(out: Path) -> list[str]:
    """The lines of the results but for how long they took, in an order of their own."""
    return sorted(
        json.dumps({k: v for k, v in record.items() if k != "seconds"}, sort_keys=True)
        for record in read_json_lines(out / "results.jsonl")
    )


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextlib.contextmanager
def node(folder: Path, *arguments: str):
    """One Ray node as `ray start` makes it, in a process group of its own."""
    command = [
        Path(sys.executable).with_name("ray"),
        "start",
        "--block",
        "--num-cpus=1",
        "--disable-usage-stats",
        *arguments,
    ]
    environment = {
        **os.environ,
        "RAY_DEDUP_LOGS": "0",
        "RAY_ENABLE_MULTI_TENANCY": "1",
        "OMP_NUM_THREADS": "1",
    }
    with (folder / f"node-{time.monotonic_ns()}.log").open("w") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, start_new_session=True, env=environment
        )
        try:
            yield process
        finally:
            kill(process)


def kill(process: subprocess.Popen) -> None:
    """The whole node at once, as when a machine loses power."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.fixture
def study(tiny, small_csv):
    tables = {
        "encoder": {"name": tiny(), "max_length": 16},
        "train": {"epochs": 2, "batch_size": 12, "lr": 1e-3, "positives": 0},
    }
    configs = {
        name: RunConfig.from_dict({**tables, "objective": {"name": name}})
        for name in ("cross_entropy", "supcon")
    }
    return Study((Source(str(small_csv)),), configs, sizes=(0,), folds=3, seeds=(2, 16, 128))


def test_a_node_dies_and_all_results_arrive_once(study, tmp_path, request):
    run_study(study, tmp_path / "here", place=Place(threads=1), show=False)
    port = free_port()
    short = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # sockets need a short path
    request.addfinalizer(lambda: shutil.rmtree(short, ignore_errors=True))
    storage = ("--temp-dir", str(short))
    script = tmp_path / "drive.py"
    script.write_text(DRIVE)
    (tmp_path / "study.pickle").write_bytes(pickle.dumps(study))
    head = node(tmp_path, "--head", f"--port={port}", "--include-dashboard=false", *storage)
    with head, node(tmp_path, f"--address=127.0.0.1:{port}") as second:
        driver = subprocess.Popen(
            [sys.executable, str(script), f"127.0.0.1:{port}", str(tmp_path)],
            stderr=subprocess.PIPE,
            text=True,
        )
        results, ended = tmp_path / "cluster" / "results.jsonl", time.monotonic() + 300
        while len(list(read_json_lines(results))) < 4:
            assert driver.poll() is None, driver.stderr.read()
            assert time.monotonic() < ended, "the cluster did nothing"
            time.sleep(0.1)
        kill(second)
        _, complaints = driver.communicate(timeout=300)
        assert driver.returncode == 0, complaints
    found = rows_of(tmp_path / "cluster")
    assert len(found) == len(set(found)) == 2 * 3 * 3  # all of them, none twice
    assert found == rows_of(tmp_path / "here")  # the bits of the local ones


DRIVE = """
import pickle, sys, time
from pathlib import Path
address, folder = sys.argv[1], Path(sys.argv[2])
import socket
while socket.socket().connect_ex((address.split(":")[0], int(address.split(":")[1]))):
    time.sleep(0.2)
from closeknit.comparison import Place, run_study
import ray
study = pickle.loads((folder / "study.pickle").read_bytes())
ray.init(address=address, log_to_driver=False)
while len([n for n in ray.nodes() if n["Alive"]]) < 2:
    time.sleep(0.2)
ray.shutdown()
run_study(study, folder / "cluster", place=Place(ray=address, threads=1), show=False)
"""


def test_a_cluster_that_is_not_there_is_named(study, tmp_path):
    with pytest.raises(ConfigError, match=r"no Ray cluster answers at 127\.0\.0\.1:1"):
        run_study(study, tmp_path / "out", place=Place(ray="127.0.0.1:1"), show=False)


def test_workers_and_a_cluster_do_not_go_together():
    with pytest.raises(ConfigError, match="cannot go together"):
        Place(workers=2, ray="auto")
