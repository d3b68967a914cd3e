"""What a step is given where inputs have open sizes; models that are fine-tuned, or too large."""

from __future__ import annotations

import re
import resource

import numpy as np
import pytest

import hub_models
from conftest import later
from mgpu_helpers import memory, scaling, trace
from mgpu_helpers.__main__ import main

WORDS = 300


@pytest.fixture(scope="module")
def text(keras):
    """Make a small language model of two named inputs, whose length is open."""
    return language_model(keras)


def language_model(keras, length=None):
    layers = keras.layers
    ids = keras.Input((length,), dtype="int32", name="ids")
    mask = keras.Input((length,), dtype="int32", name="mask")
    x = layers.Embedding(WORDS, 32)(ids) * keras.ops.cast(mask, "float32")[..., None]
    x = x + layers.Attention()([x, x], use_causal_mask=True)
    model = keras.Model({"ids": ids, "mask": mask}, layers.Dense(WORDS)(x), name="text")
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def sentences(batch, length):
    ids = np.random.default_rng(0).integers(0, WORDS, (batch, length)).astype("int32")
    return {"ids": ids, "mask": np.ones_like(ids)}, ids, np.ones(ids.shape, "f")


def counted(plan, model, data):
    """Count a step, whose range is to have what a traced one held at its peak, with all there."""
    import tensorflow as tf

    found = memory.predict(model, data)
    with tf.device(plan.devices[0]):
        peak = trace.fit_step(model, data).peak(plan.devices[0], scratch=False)
    there = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    there = {id(v): v for v in there}.values()
    held = peak + sum(v.value.dtype.size * v.shape.num_elements() for v in there)
    assert found.low <= held <= found.high
    return found


def test_data_as_fit_takes_them_say_all_sizes(tf, keras, plan, text):
    data = sentences(16, 48)
    found = counted(plan, text, data)
    assert found.took == "ids 48, mask 48, labels 48, sample weights 48" and found.batch == 16
    assert repr(found).endswith(f"\nan example has {found.took}")

    dataset = tf.data.Dataset.from_tensor_slices(data).batch(16)
    specs = keras.tree.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), data)
    for other in (dataset, [data], specs):
        assert memory.predict(text, other) == found
    short = memory.predict(text, 8, length=dataset)  # of as many examples as were asked for
    assert (short.batch, short.took) == (8, found.took) and short.total < found.total


def test_a_length_is_what_all_open_sizes_are(keras, text):
    found = memory.predict(text, 16, length=48)
    assert found.total == pytest.approx(memory.predict(text, sentences(16, 48)).total, rel=0.02)
    assert found.took == "ids 48, mask 48"
    most = memory.fits(text, found.high, length=48)
    assert memory.predict(text, most, length=48).high <= found.high and most >= 16
    short, long = (scaling.Workload.of(text, length=n) for n in (16, 64))
    assert 4 * short.flops < long.flops and long.name == "text ids 64, mask 64"


def test_images_of_open_sizes_are_counted_as_they_are_traced(tf, keras, plan):
    layers = keras.layers
    with tf.device(plan.devices[0]):
        model = keras.Sequential([
            keras.Input((None, None, 3)), layers.Conv2D(16, 3), layers.Conv2D(16, 3, 1, "same"),
            layers.ReLU(), layers.GlobalAveragePooling2D(), layers.Dense(2),
        ])  # fmt: skip
    model.compile("adam", "mse")
    found = counted(plan, model, (np.ones((8, 40, 60, 3), "f"), np.ones((8, 2), "f")))
    assert found.took == "x 40x60x3, labels 2"
    assert memory.predict(model, 8, length=40).total < found.total


def test_strings_are_taken_by_what_prepares_them(keras, text):
    """As the tasks of KerasHub are given to fit, and to `trace.fit_step`."""
    class Task(keras.Model):
        def preprocess_samples(self, x, y=None, sample_weight=None):
            return sentences(len(x), 24)

    task = Task(text.inputs, text.outputs)
    task.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    data = (np.array(["one", "two"]),)
    assert memory.predict(task, data).took == memory.predict(text, sentences(2, 24)).took
    assert trace.fit_step(task, data).ops


def test_a_plan_for_several_lengths_shows_how_each_way_grows(keras, text):
    budget = memory.predict(text, 16, length=32).high
    found = memory.plan(text, 16, 2, budget, length=[64, 16, 32])
    assert [*found.shorter] == [16, 32]
    closed = memory.plan(language_model(keras, 64), 16, 2, budget)
    for way, other in zip(found.ways, closed.ways, strict=True):
        assert (way.name, way.held, way.high) == (other.name, other.held, other.high)
        assert (way.crossing, way.work) == (other.crossing, other.work)
    for length, ways in found.shorter.items():
        alone = memory.predict(text, 16, length=length)
        assert ways[0].held == pytest.approx(alone.total, rel=0.05)
        assert [way.layout for way in ways] == [way.layout for way in found.ways]
        assert all(a.held < b.held for a, b in zip(ways, found.ways, strict=True))
    lines = repr(found).splitlines()
    assert re.search("about +at 16 +at 32 +fits", lines[1]) and "to 32" in lines[2]
    assert "An example has ids 64, mask 64." in lines


@pytest.mark.parametrize("call, said", [
    (lambda m: memory.predict(m, 8), "give length=…"),
    (lambda m: memory.plan(m, 8, 2), "give length=…"),
    (lambda m: memory.fits(m, 1e9), "give length=…"),
    (lambda m: scaling.Workload.of(m), "give length=…"),
    (lambda m: memory.predict(m, sentences(8, 16), length=8), "leave it out"),
    (lambda m: memory.predict(m, ({"ids": np.zeros((8, 4, 2)), "mask": np.zeros((8, 4))},)),
     r"takes inputs of shape \(None, None\), \(None, None\), .* has \(8, 4, 2\), \(8, 4\)"),
    (lambda m: memory.predict(m, (sentences(8, 16)[0], np.zeros((4, 16)))), "as many examples"),
])  # fmt: skip
def test_what_says_no_sizes_is_refused_with_the_remedy(text, call, said):
    with pytest.raises(ValueError, match=said):
        call(text)


# Fine-tuned


def tuned(keras, kind):
    """Make a model of large layers, all trained, or with LoRA, on weights of 8 bits or of 32.

    Those of 8 are cast to 32 for the way back as soon as a step begins, which is half of it.
    """
    given, words = keras.Input((None,), dtype="int32"), keras.layers.Embedding(2000, 256)
    dense = [keras.layers.Dense(*each) for each in ((1024, "relu"), (256,)) * 2]
    x = words(given)
    for layer in dense:
        x = layer(x)
    # As language models have it, the table of words again.
    model = keras.Model(given, keras.ops.matmul(x, keras.ops.transpose(words.embeddings)))
    words.trainable = kind == "full"
    for layer in dense if kind != "full" else []:
        layer.enable_lora(4)
        layer.bias.trainable = False
        if kind == "int8":
            layer.quantize("int8")
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


@pytest.mark.parametrize("kind", [later("full"), "lora", later("int8")])
def test_what_is_not_trained_has_no_slots_and_no_gradients(tf, keras, plan, kind):
    with tf.device(plan.devices[0]):
        model = tuned(keras, kind)
    x = np.random.default_rng(0).integers(0, 2000, (2, 16))
    found = counted(plan, model, (x, x))
    trained = 4 * sum(v.shape.num_elements() for v in model.trainable_variables)
    assert found.slots == pytest.approx(2 * trained, abs=100) and found.gradients <= 1.6 * trained
    advice = memory.plan(model, (x, x), budget=1)
    assert advice.ways[0].held == pytest.approx(found.total, rel=0.1)
    for said, wanted in (("enable_lora", True), ("others have no gradients", False)):
        assert (said in " ".join(advice.notes)) == (wanted == (kind == "full"))


# Too large


def test_a_model_without_values_is_counted_as_one_with_them(keras):
    with memory.without_values():
        without = language_model(keras)
    model = language_model(keras)
    assert memory.predict(without, 8, length=16) == memory.predict(model, 8, length=16)
    ways = [memory.plan(m, 8, 2, length=16).ways for m in (without, model)]
    assert [way.held for way in ways[0]] == [way.held for way in ways[1]]


def test_a_script_builds_what_this_machine_could_not_hold(keras, tmp_path, capsys):
    script = tmp_path / "train.py"
    script.write_text(
        "import keras, numpy as np\n"
        "def large():\n"
        "    layers = keras.Input((None, 100_000)), keras.layers.Dense(1_000_000)\n"
        "    return keras.Sequential(layers)\n"
        "def quantized():\n"
        "    model = keras.Sequential([keras.Input((None, 8)), keras.layers.Dense(8)])\n"
        "    model.quantize('int8')\n"
        "    return model, (np.zeros((6, 5, 8), 'f'),)\n"
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run = ["plan", f"{script}:large", "--budget", "80GB", "--batch", "4"]
    assert main([*run, "--length", "16", "32"]) == 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + 1e6  # kB
    out = capsys.readouterr().out
    assert "the weights alone are 400 GB" in out and "at 16" in out
    assert main(["plan", f"{script}:quantized"]) == 0
    assert "6 examples a step" in (out := capsys.readouterr().out) and "has x 5x8" in out
    assert main(["plan", f"{script}:quantized", "--batch", "3"]) == 0
    assert "3 examples a step" in capsys.readouterr().out


# Of KerasHub


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["gpt2", "bert", "gemma", "gemma_lora", "gemma_int8", "llama"])
def test_models_of_kerashub_are_counted_as_they_are_traced(tf, plan, name):
    pytest.importorskip("keras_hub")
    with tf.device(plan.devices[0]):
        model, given = hub_models.CASES[name](width=64)
    found = counted(plan, model, tuple(given.values()))
    length = memory.predict(model, found.batch, length=hub_models.LENGTH)
    assert length.total == pytest.approx(found.total, rel=0.02)
