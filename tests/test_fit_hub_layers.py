"""Decoder blocks of KerasHub in parts on several devices, against one device."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fit_models
import hub_models
from conftest import later, run_python
from mgpu_helpers import fit

hub = pytest.importorskip("keras_hub", reason="KerasHub is not installed: pip install keras-hub")

# As docs/parts_of_layers.md has them.
FEED_FORWARD = {"feedforward_(gate|intermediate)_dense": "columns",
                "feedforward_output_dense": "rows"}  # fmt: skip
WHERE = {
    "gemma": {"attention": "heads", "ffw_gating.*": "columns", "ffw_linear": "rows"},
    "llama": {"self_attention": "heads"} | FEED_FORWARD,
    "gpt2": {"self_attention": "heads"} | FEED_FORWARD,
}
WORDS = {"token_embedding": "rows"}  # which make the logits, too


class Double:
    """The operations of Keras, with float64 where KerasHub asks for float32."""

    def __getattr__(self, name):
        import keras

        return getattr(keras.ops, name)

    def cast(self, x, dtype):
        import keras

        return keras.ops.cast(x, "float64" if str(dtype) == "float32" else dtype)


def made(family, monkeypatch, blocks):
    """Make a model of a family, which computes all in float64, with Adam and clipping."""
    import keras
    from keras_hub.src.models.gemma import rms_normalization
    from keras_hub.src.models.llama import llama_decoder, llama_layernorm

    for module in (rms_normalization, llama_decoder, llama_layernorm):
        monkeypatch.setattr(module, "ops", Double())
    keras.utils.set_random_seed(0)
    model, given = hub_models.CASES[family](blocks)
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.Softmax):
            layer.dtype_policy = keras.DTypePolicy("float64")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01, global_clipnorm=0.5), loss)
    return model, given


def trained(family, blocks, change):
    with pytest.MonkeyPatch.context() as patch:
        model, given = made(family, patch, blocks)
        change(model)
        seen = model.fit(**given, batch_size=4, verbose=0, shuffle=False).history
        whole = model.get_weights()
        return model, (seen, [*whole, model.predict(given["x"], verbose=0)])


def keeps(family, devices, much=1e-12, blocks=2, **options):
    """Compare parts with one device; say how much the fullest device and the emptiest have."""
    _, wanted = trained(family, blocks, lambda model: None)
    layers = WHERE[family.partition("_")[0]] | WORDS
    model, found = trained(
        family, blocks, lambda m: fit.use(m, devices, layers=layers, **options)
    )
    fit_models.near(found, wanted, much)
    held = dict.fromkeys((d[1:] for d in fit.layout(model).rows[0]), 0)
    for v in model.weights:
        held[v.value.device.rpartition("device:")[2]] += int(np.prod(v.shape))
    return model, held


@pytest.mark.parametrize("family, blocks", [("gpt2", 1), later("llama", 2), later("gemma", 2)])
def test_decoder_blocks_in_parts_train_as_whole(keras, plan, double, family, blocks):
    model, held = keeps(family, plan.devices, blocks=blocks)
    first, second = held.values()
    first -= 64 * 8 * (family == "gpt2")  # a table of positions, which is no Embedding
    assert 0.6 * first < second < first  # norms, and heads of keys, are on the first


@pytest.mark.thorough
@pytest.mark.parametrize("family", WHERE)
def test_two_rows_of_two_devices_train_decoder_blocks_as_one_device(family):
    run_python(f"""
        import sys
        sys.path.append({str(Path(hub.__file__).parents[1])!r})
        import fit_models, test_fit_hub_layers
        from mgpu_helpers import devices
        plan = devices.setup(4)
        with fit_models.double():
            for options in ({{}}, dict(recompute=True), dict(pieces=2)):
                test_fit_hub_layers.keeps({family!r}, plan.devices, row=2, **options)
    """.replace("\n        ", "\n"), timeout=900, MGPU_MODE="cores")  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("family", WHERE)
def test_what_is_found_are_the_blocks(keras, plan, double, family):
    """By themselves, and by the layout map of a family that has one."""
    from keras_hub import models

    from mgpu_helpers.fit.laying import laid_out

    model, _ = hub_models.CASES[family]()
    named = laid_out(fit.use(model, plan.devices, layers=WHERE[family])).cut.ways
    found = laid_out(fit.use(model, plan.devices, layers="auto")).cut.ways
    assert {*found} == {*named} and len(found) == 2 * (6 if family == "gpt2" else 7)
    if family != "gpt2":
        mesh = keras.distribution.DeviceMesh((1, 2), ("batch", "model"), ["cpu:0", "cpu:1"])
        kind = {"gemma": models.GemmaBackbone, "llama": models.LlamaBackbone}[family]
        fit.use(model, plan.devices, layers=kind.get_layout_map(mesh))
        ways = laid_out(model).cut.ways
        assert ways.pop(model.backbone.token_embedding).shares == [20, 20] and ways == named


@pytest.mark.thorough
def test_lora_is_cut_with_its_layer_and_int8_is_refused(keras, plan):
    """LoRA computes in float32."""
    keeps("gemma_lora", plan.devices, 1e-5)
    model, _ = hub_models.CASES["gemma_int8"]()
    with pytest.raises(ValueError, match="query is quantized"):
        fit.use(model, plan.devices, layers=WHERE["gemma"])


@pytest.mark.thorough
def test_it_generates_and_is_saved_whole(keras, plan, tmp_path):
    """Words come by code that calls the layers inside, and not the model."""
    model, given = hub_models.CASES["gpt2"]()
    model.compile(sampler="greedy")
    x = {name: each[:2] for name, each in given["x"].items()}
    wanted = model.generate(x, stop_token_ids=None)
    fit.use(model, plan.devices, layers=WHERE["gpt2"])
    for name, each in model.generate(x, stop_token_ids=None).items():
        np.testing.assert_array_equal(each, wanted[name])
    model.save_to_preset(tmp_path)
    assert (tmp_path / "model.weights.h5").stat().st_size > 4 * fit.alone(model).count_params()
