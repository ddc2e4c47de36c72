"""A study on a real Ray cluster of two nodes on this machine, one of which is killed in the
middle.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from closeknit.classification.config import RunConfig
from closeknit.errors import ConfigError
from closeknit.json_lines import read_json_lines as read_lines
from closeknit.studies.run import Place, run_study
from closeknit.studies.study import Source, Study

pytest.importorskip("ray", reason="needs the extra cluster")
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own


def rows_of(out: Path) -> list[str]:
    """The lines of the results but for how long they took, in an order of their own."""
    return sorted(
        json.dumps({k: v for k, v in record.items() if k != "seconds"}, sort_keys=True)
        for record in read_lines(out / "results.jsonl")
    )


# Ray chooses every port itself. A port that a test picks beforehand may be taken by another process before Ray starts.
OWN_PORTS = ("--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0")


@dataclass
class Node:
    """One Ray node: its process and the file that its messages go to."""

    process: subprocess.Popen
    log: Path

    def kill(self) -> None:
        """Kill the whole node at once, as when a machine loses power."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def address(self) -> str:
        """Wait until a head node says at which address other nodes reach it."""
        deadline = time.monotonic() + 120
        while True:
            messages = self.log.read_text()
            if found := re.search(r"ray start --address='([^']+)'", messages):
                return found[1]
            assert self.process.poll() is None, messages
            assert time.monotonic() < deadline, messages
            time.sleep(0.1)


@contextlib.contextmanager
def ray_node(log: Path, *arguments: str) -> Iterator[Node]:
    """Start a Ray node as a user does, in a process group that ends with this context."""
    command = [Path(sys.executable).with_name("ray"), "start", "--block", "--num-cpus=1"]
    command += ["--disable-usage-stats", *OWN_PORTS, *arguments]
    environment = {
        **os.environ,
        "RAY_DEDUP_LOGS": "0",
        "RAY_ENABLE_MULTI_TENANCY": "1",
        "OMP_NUM_THREADS": "1",
    }
    with log.open("w") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, start_new_session=True, env=environment
        )
    node = Node(process, log)
    try:
        yield node
    finally:
        node.kill()


@contextlib.contextmanager
def study_driver(log: Path, folder: Path, address: str) -> Iterator[subprocess.Popen]:
    """Run the study of this folder on the cluster at this address, in a process that ends with this
    context.
    """
    script = folder / "drive.py"
    script.write_text(DRIVE)
    with log.open("w") as output:
        driver = subprocess.Popen([sys.executable, script, address, folder], stderr=output)
    try:
        yield driver
    finally:
        driver.kill()
        driver.wait()


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


@pytest.fixture
def short_folder():
    """A folder with a short path: Ray puts Unix sockets there, whose paths may have 107 bytes at
    most.
    """
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def test_a_node_dies_and_all_results_arrive_once(study, tmp_path, short_folder):
    run_study(study, tmp_path / "here", place=Place(threads=1), show=False)
    (tmp_path / "study.pickle").write_bytes(pickle.dumps(study))
    results = tmp_path / "cluster" / "results.jsonl"
    log = tmp_path / "driver.log"
    head_options = ("--head", "--port=0", "--include-dashboard=false", f"--temp-dir={short_folder}")
    with contextlib.ExitStack() as stack:
        head = stack.enter_context(ray_node(tmp_path / "head.log", *head_options))
        address = head.address()
        second = stack.enter_context(ray_node(tmp_path / "second.log", f"--address={address}"))
        driver = stack.enter_context(study_driver(log, tmp_path, address))
        deadline = time.monotonic() + 300
        while len(list(read_lines(results))) < 4:
            assert driver.poll() is None, log.read_text()
            assert time.monotonic() < deadline, "the cluster did nothing"
            time.sleep(0.1)
        second.kill()
        assert driver.wait(timeout=300) == 0, log.read_text()
    found = rows_of(tmp_path / "cluster")
    assert len(found) == len(set(found)) == 2 * 3 * 3  # all of them, none twice
    assert found == rows_of(tmp_path / "here")  # the bits of the local ones


DRIVE = """
import pickle, sys, time
from pathlib import Path
from closeknit.studies.run import Place, run_study
import ray
address, folder = sys.argv[1], Path(sys.argv[2])
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
    with pytest.raises(ConfigError, match="cannot be used together"):
        Place(workers=2, ray="auto")
