"""Errors reach the process that waits for them whole."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import pkgutil

import pytest

import closeknit
from closeknit.errors import CloseknitError, MissingExtra

NEED_A_GPU = ("triton", "soft_triple_kernel")  # modules that import Triton


def every_error() -> list[type[Exception]]:
    """Every class of error in the package."""
    found: set[type[Exception]] = set()
    for module in pkgutil.walk_packages(closeknit.__path__, "closeknit."):
        name = module.name.rpartition(".")[2]
        if name == "__main__" or name.startswith(NEED_A_GPU):
            continue
        for value in vars(importlib.import_module(module.name)).values():
            if (
                isinstance(value, type)
                and issubclass(value, Exception)
                and value.__module__.startswith("closeknit")
            ):
                found.add(value)
    return sorted(found, key=lambda error: error.__name__)


def test_every_error_is_the_same_after_the_way_between_processes():
    errors = every_error()
    assert {CloseknitError, MissingExtra} < set(errors) and len(errors) >= 9
    for kind in errors:
        own = kind.__init__ is not Exception.__init__
        amount = len(inspect.signature(kind).parameters) if own else 1
        error = kind(*(f"argument {number}" for number in range(amount)))
        error.note = "kept"
        for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
            assert type(other) is kind
            assert str(other) == str(error) and "argument 0" in str(other)
            assert other.note == "kept"


def test_a_missing_extra_names_the_command_that_installs_it():
    with pytest.raises(
        MissingExtra, match=r"^LoRA needs an extra: pip install 'closeknit\[lora\]'$"
    ):
        raise MissingExtra("LoRA", "lora")
