"""What is said before a training about its batches, against what MirroredStrategy hands out.

In a child process: it needs four devices.
"""

from __future__ import annotations

import json

import pytest

from conftest import run_python
from mgpu_helpers import towers
from mgpu_helpers.towers import batches
from mgpu_helpers.towers.batches import replica_sizes

CODE = """
import json
from mgpu_helpers import devices
plan = devices.setup(4)
import tensorflow as tf

found = []
for n in (2, 3, 4):
    strategy = tf.distribute.MirroredStrategy(plan.devices[:n])
    for examples, batch in [(1, 4), (3, 4), (5, 4), (7, 3), (8, 4), (10, 12), (13, 5), (17, 8),
                            (20, 12), (21, 8), (22, 8), (24, 12), (27, 12), (33, 12)]:
        data = tf.data.Dataset.range(examples).batch(batch)
        data = strategy.experimental_distribute_dataset(data)
        sizes = [[len(part) for part in strategy.experimental_local_results(parts)]
                 for parts in data]
        found.append([examples, batch, n, sizes])
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found():
    printed = run_python(CODE, MGPU_MODE="cores", PYTHONWARNINGS="ignore")
    return json.loads(printed.stdout.splitlines()[-1])


def said(examples: int, batch: int, replicas: int) -> str:
    try:
        towers.check_batches(examples, batch, replicas)
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.thorough
def test_a_training_is_refused_exactly_where_replicas_get_different_numbers(found):
    kinds = set()
    for examples, batch, replicas, sizes in found:
        wanted = [batch] * (examples // batch) + [examples % batch] * (examples % batch > 0)
        assert sizes == [replica_sizes(each, replicas) for each in wanted]
        # A first batch that is the last one, too, is what `fit` divides by.
        uneven = any(len(set(each)) > 1 for each in sizes)
        message = said(examples, batch, replicas)
        if batch % replicas == 0:
            assert bool(message) == uneven, (examples, batch, replicas)
            empty = any(0 in each for each in sizes)
            assert ("NaN" in message) == empty
            kinds.add((uneven, empty))
        for number in (batch,) if batch % replicas else (examples % batch,) if message else ():
            assert str(number) in message
    assert kinds == {(False, False), (True, False), (True, True)}


def test_the_remedy_holds():
    assert "use 4 or 8" in said(100, 6, 4)
    assert "use 4." in said(100, 3, 4)
    assert "to 8 or more" in said(13, 8, 4)
    assert said(16, 8, 4) == said(12, 8, 4) == said(5, 2, 1) == ""


@pytest.fixture(scope="module")
def numbers(plan):
    """Make a Dataset of labelled examples."""
    import tensorflow as tf

    return lambda n: tf.data.Dataset.range(n).map(lambda i: (tf.fill([3], i), i))


@pytest.mark.parametrize("make, message", [
    (lambda data: data(16).batch(8), ""),
    (lambda data: data(13).batch(8), "batch 2 .* 5 .* 2, 2, 1, 0: .*NaN.* 8 or more"),
    (lambda data: data(13).repeat().batch(8), "10 batches .*drop_remainder"),
    (lambda data: data(13).repeat().batch(8, drop_remainder=True), ""),
    (lambda data: data(24).batch(6).filter(lambda x, y: y[0] > 5), "6 .* 2, 2, 2, 0: use 4 or 8"),
    (lambda data: data(24).batch(8).concatenate(data(7).batch(7)), "batch 4 .* 7 .*count alike"),
    (lambda data: data(24), r"\(3,\) and \(\), which are no batches"),
])  # fmt: skip
def test_the_batches_of_a_dataset_are_looked_at(numbers, monkeypatch, make, message):
    monkeypatch.setattr(batches, "ENOUGH", 10)
    data = make(numbers)
    if message:
        with pytest.raises(ValueError, match=message):
            towers.check_batches(data, replicas=4)
    else:
        towers.check_batches(data, replicas=4)


@pytest.mark.parametrize("bad", [(0, 4, 2), (8, 4, 0), (8, None, 2)])
def test_what_is_no_number_is_named(bad):
    with pytest.raises(ValueError, match="whole number"):
        towers.check_batches(*bad)
