"""The table of the lessons that grows: what each way to train costs, counted anew."""

from __future__ import annotations

import json

import pytest

from conftest import run_python
from lessons import NOTEBOOKS, read, ways

STORED = json.loads((NOTEBOOKS / "ways.json").read_text(encoding="utf-8"))
NAMES = {row["lesson"] for row in STORED}


def test_each_lesson_shows_the_ways_up_to_its_own():
    lessons = read()
    shown = {name: ways(lessons, one) for one in lessons if (name := one.name[3:]) in NAMES}
    for name, rows in shown.items():
        own = [row["way"] for row in STORED if row["lesson"] == name]
        assert [way in row for way, row in zip(own, rows[-len(own) :], strict=True)]
        assert all("**" in row for row in rows[-len(own) :])
        assert not any("**" in row for row in rows[: -len(own)])
    assert len(ways(lessons)) == 2 + len(STORED) == len(shown["combine_two_ways"])
    all_rows = shown["combine_two_ways"]
    assert ways(lessons, lessons[15], only=["00", "12"]) == [
        *all_rows[:3], *(row for row in all_rows if "](12_" in row), all_rows[-1],
    ]  # fmt: skip


@pytest.mark.thorough
def test_what_is_stored_is_counted_again():
    """Bytes that a step adds, and what it starts, depend on the processor's kernels."""
    counted = run_python("""
        import json, sys
        sys.path.append('tools')
        import count_ways
        from mgpu_helpers import devices
        for row, _ in count_ways.rows(devices.setup(4)):
            print(json.dumps(row))
    """.replace("\n        ", "\n"), timeout=900, MGPU_MODE="cores")  # fmt: skip
    for line, stored in zip(counted.stdout.splitlines()[-len(STORED) :], STORED, strict=True):
        found = json.loads(line)
        for exact in "lesson", "way", "devices", "keeps", "crosses":
            assert found[exact] == stored[exact], (stored["way"], exact)
        for near in "adds", "operations":
            expected = stored[near] and pytest.approx(stored[near], rel=0.1)  # None: not to be seen
            assert found[near] == expected, (stored["way"], near)
