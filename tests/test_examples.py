"""The examples in the docstrings run and give what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import numpy as np
import pytest

import mgpu_helpers

MODULES = sorted(
    each.name
    for each in pkgutil.walk_packages(mgpu_helpers.__path__, "mgpu_helpers.")
    if not each.name.endswith("__main__")
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(plan, name: str, tmp_path, monkeypatch):
    import tensorflow as tf

    monkeypatch.chdir(tmp_path)  # some write a file
    module = importlib.import_module(name)
    room = importlib.import_module(".".join(name.split(".")[:2]))
    names = vars(room) | vars(module) | {"np": np, "tf": tf, "plan": plan}
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    said: list[str] = []
    for example in doctest.DocTestFinder(exclude_empty=True).find(module, name, globs=names):
        runner.run(example, out=said.append)
    assert not runner.failures, "".join(said)
