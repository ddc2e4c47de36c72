"""The lower bounds in pyproject.toml are the versions that the tests with the oldest versions use."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PINNED_FOR_EVERYBODY = {"torch"}  # docs/decisions/the-pin-of-torch.md


def lower_bounds() -> dict[str, str]:
    """The lower bound of each package in pyproject.toml, those of all extras included."""
    extras = PROJECT["optional-dependencies"].values()
    found: dict[str, str] = {}
    for requirement in [*PROJECT["dependencies"], *(one for extra in extras for one in extra)]:
        if requirement.startswith("closeknit["):
            continue
        name, separator, bound = requirement.partition(">=")
        assert separator, f"{requirement} in pyproject.toml has no lower bound"
        name = name.partition("[")[0].strip().lower()
        bound = bound.partition(",")[0].strip()
        assert found.setdefault(name, bound) == bound, f"{name} has two lower bounds"
    return found


def pins(file: str) -> dict[str, str]:
    """The version of each package in a file of constraints."""
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    pinned = [line.partition("#")[0].strip() for line in lines]
    return dict(line.lower().split("==") for line in pinned if line)


def number(version: str) -> tuple[int, ...]:
    """2.10 and 2.10.0 as the same number that can be compared."""
    parts = [int(part) for part in re.findall(r"\d+", version)]
    while parts and parts[-1] == 0:
        parts.pop()
    return tuple(parts)


def test_the_oldest_versions_are_the_lower_bounds():
    bounds = lower_bounds()
    oldest = pins("constraints-oldest.txt")
    assert oldest.keys() == bounds.keys(), "constraints-oldest.txt names other packages"
    for name in oldest.keys() - PINNED_FOR_EVERYBODY:
        assert number(oldest[name]) == number(bounds[name]), (
            f"constraints-oldest.txt has {name} {oldest[name]}, pyproject.toml allows {bounds[name]}"
        )


def test_both_files_of_constraints_pin_the_same_torch():
    assert pins("constraints-oldest.txt")["torch"] == pins("constraints.txt")["torch"]


@pytest.mark.parametrize("file", ["constraints.txt", "constraints-oldest.txt"])
def test_constraints_allow_what_the_project_allows(file):
    bounds = lower_bounds()
    for name, version in pins(file).items():
        if name in bounds:
            assert number(version) >= number(bounds[name]), f"{file} pins {name} below its bound"
