"""docs/upstream.md shows what its programs print in plain Keras, before and after each cure."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from conftest import ROOT, run_python

PAGE = (ROOT / "docs" / "upstream.md").read_text(encoding="utf-8")
HEAD, *SECTIONS = re.split(r"^## ", PAGE, flags=re.MULTILINE)
BLOCK = re.compile(r"^```(python|text)\n(.+?)^```$", re.MULTILINE | re.DOTALL)
FIRST = BLOCK.search(HEAD)[2]
SHOWN = {each.partition("\n")[0]: BLOCK.findall(each) for each in SECTIONS if "```text" in each}


def on_two_workers(code: str) -> str:
    """Run code on two workers; give what both have printed."""
    with socket.socket() as first, socket.socket() as second:
        for each in (first, second):
            each.bind(("localhost", 0))
        ports = [each.getsockname()[1] for each in (first, second)]
    cluster = {"worker": [f"localhost:{port}" for port in ports]}

    def run(index: int) -> str:
        task = {"cluster": cluster, "task": {"type": "worker", "index": index}}
        return run_python(code, TF_CONFIG=json.dumps(task)).stdout

    with ThreadPoolExecutor(2) as both:
        return "".join(both.map(run, range(2)))


@pytest.mark.thorough
@pytest.mark.parametrize("blocks", SHOWN.values(), ids=SHOWN)
def test_a_program_prints_what_the_page_shows(blocks):
    assert [kind for kind, _ in blocks] == ["python", "text"] * 2
    program, before, cure, after = (text for _, text in blocks)
    if "MultiWorker" in program:
        first, rest = program.split("\n", 1)
        assert on_two_workers(program) == before
        assert on_two_workers(f"{first}\n{cure}\n{rest}") == after
    else:
        printed = run_python("\n".join((FIRST, program, cure, program))).stdout
        assert printed == before + after


@pytest.mark.thorough
def test_keras_own_tests_pass_under_the_strategy():
    tool = ROOT / "tools" / "try_keras_tests.py"
    run = subprocess.run([sys.executable, tool, "callbacks/lambda_callback_test.py"], text=True,
                         capture_output=True, timeout=300)  # fmt: skip
    passed, of_them = map(int, re.findall(r"(\d+)(?: tests pass| of them)", run.stdout))
    assert run.returncode == 0 and passed == of_them > 0
