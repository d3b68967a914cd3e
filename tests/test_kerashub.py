"""Models as people have them, in every way of `fit.use`, against `fit` on one device.

KerasHub's own classes in small, with weights that are drawn, and transfer learning as Keras's guide
writes it. One model with several options at once is in `make test`, and `make thorough` has all.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fit_models
import hub_models
from conftest import later, quick, run_python
from fit_models import places
from keras_models import keras
from mgpu_helpers import fit, trace
from mgpu_helpers._layers import LayerGraph
from mgpu_helpers.fit.laying import laid_out
from mgpu_helpers.fit.layout import Layout

pytest.importorskip(
    "keras_hub", reason="KerasHub is not installed: `make env` installs it.", exc_type=ImportError
)

# How near a model comes: LoRA computes in float32, whatever the policy. Of numbers with eight
# binary digits, single ones are several roundings off, so that each array counts whole.
HALVES = {"gemma_int8": 1e-4, "gemma_bfloat16": 1.5e-2}
# The 52 normalizations of the trained MobileNetV2 make 3e-10 of rounding in another order.
NEAR = {"gemma_lora": 1e-5, "transfer_trained": 1e-9} | HALVES
# A BatchNormalization normalizes by its piece: pieces train something else, and say so.
PIECES = [case for case in hub_models.CASES
          if not case.startswith(("resnet", "segformer", "transfer"))]  # fmt: skip
# All at once: with a BatchNormalization without pieces.
TOGETHER: dict[str, dict[str, Any]] = {
    "where it is": {"pieces": 2, "recompute": True}, "host": {"state": "host", "recompute": True},
    "rows": {"shares": (2, 1), "state": "owners", "pieces": 2},
    "stages": {"stages": 2, "pieces": 3, "recompute": True},
}  # fmt: skip


# Parts of layers, as docs/parts_of_layers.md has them; the words' table makes the logits, too.
FEED_FORWARD = {"feedforward_(gate|intermediate)_dense": "columns",
                "feedforward_output_dense": "rows", "token_embedding": "rows"}  # fmt: skip
PARTS = {
    "gemma": {"attention": "heads", "ffw_gating.*": "columns", "ffw_linear": "rows",
              "token_embedding": "rows"},
    "llama": {"self_attention": "heads"} | FEED_FORWARD,
    "gpt2": {"self_attention": "heads"} | FEED_FORWARD,
}  # fmt: skip
# On two rows of two devices; Bart has to be told where two tensors cross.
EVERY = {"pieces": 2, "recompute": True, "state": "owners"}
ROWS = {
    "bart": [{"stages": ["transformer_decoder_layer_0"]} | EVERY],
    "gemma_lora": [{"stages": 2} | EVERY], "resnet": [{"stages": 2}],
} | {
    case: [{"layers": parts, "row": 2} | more for more in ({}, {"recompute": True}, {"pieces": 2})]
    for case, parts in PARTS.items()
}  # fmt: skip


class Double:
    """The operations of Keras, with float64 where KerasHub asks for float32."""

    def __getattr__(self, name: str) -> Any:
        return getattr(keras.ops, name)

    def cast(self, x: Any, dtype: Any) -> Any:
        return keras.ops.cast(x, "float64" if str(dtype) == "float32" else dtype)


@contextlib.contextmanager
def all_double() -> Iterator[None]:
    """Compute in float64 what Gemma and Llama compute in float32, too."""
    from keras_hub.src.models.gemma import rms_normalization
    from keras_hub.src.models.llama import llama_decoder, llama_layernorm

    with fit_models.double(), pytest.MonkeyPatch.context() as patch:
        for module in (rms_normalization, llama_decoder, llama_layernorm):
            patch.setattr(module, "ops", Double())
        patch.setattr(keras.layers.Softmax, "compute_dtype", "float64")
        yield


def trained(case: str, change: Any, whole: bool, **size: int) -> list[Any]:
    """Fit a case, changed after it is made: its history, and its predictions and weights."""
    with contextlib.nullcontext() if case in HALVES else all_double():
        keras.utils.set_random_seed(0)
        model, given = hub_models.CASES[case](**size)
        model.optimizer.global_clipnorm = 0.5
        flags = [v.trainable for v in model.variables]
        change(model)
        asked = {"batch_size": 6, "verbose": 0, "shuffle": False}
        seen = model.fit(**given, **asked, epochs=2 if whole else 1).history
        found = []
        if whole:
            batch = {"batch_size": 6, "verbose": 0}
            tried = model.evaluate(**given, **batch, return_dict=True)
            seen |= {f"tried {name}": [value] for name, value in tried.items()}
            found = [model.predict(given["x"], **batch)]
        assert [v.trainable for v in fit.alone(model).variables] == flags
    return [seen, [*found, *(np.asarray(v.numpy(), "d") for v in model.weights)]]


@functools.cache
def alone(case: str, whole: bool, **size: int) -> list[Any]:
    return trained(case, lambda model: None, whole, **size)


def keeps(case: str, devices: Any, options: dict[str, Any], whole: bool, **size: int) -> None:
    def change(model: Any) -> None:
        fit.use(model, devices, **options)
        parted = fit.layout(model).staged or "layers" in options
        if parted and case in PIECES and case != "vit":  # which is one layer
            there = places(v for v in model.weights for _ in range(v.shape.num_elements()))
            first = sum(place in ("CPU:1", "CPU:3") for place in there)  # of a row, in each row
            assert 0.25 < first / len(there) < 0.75

    found, wanted = trained(case, change, whole, **size), alone(case, whole, **size)
    if case == "gemma_bfloat16":
        fit_models.near([found[0], []], [wanted[0], []], NEAR[case])
        apart = [np.linalg.norm(np.subtract(a, b, dtype="d")) / (np.linalg.norm(b) or 1)
                 for a, b in zip(found[1], wanted[1], strict=True)]  # fmt: skip
        assert max(apart) < NEAR[case], apart
        return
    fit_models.near(found, wanted, NEAR.get(case, 1e-12 if "layers" in options else 1e-10))


@pytest.mark.parametrize("case, way", quick(
    ("gemma_lora", "host"), among=[*itertools.product(hub_models.CASES, TOGETHER)]
))  # fmt: skip
def test_fit_is_that_of_one_device(keras, plan, case, way):
    """In batches of 6 examples and of 5."""
    options = dict(TOGETHER[way])
    if case not in PIECES:
        options.pop("pieces", None)
        if way == "host":
            del options["recompute"]
    if case == "bart" and "stages" in options:  # where two tensors cross, which it has to be told
        options["stages"] = ["transformer_decoder_layer_0"]
    keeps(case, None if way == "where it is" else plan.devices, options, whole=True)


@pytest.mark.parametrize("case", quick("gpt2", among=[*PARTS, "gemma_lora"]))
def test_decoder_blocks_in_parts_train_as_whole(keras, plan, case):
    parts = PARTS[case.removesuffix("_lora")]
    keeps(case, plan.devices, {"layers": parts}, whole=False, layers=1 if case == "gpt2" else 2)


@pytest.mark.thorough
@pytest.mark.parametrize("case", ROWS)
def test_rows_of_two_devices_are_one_device(case):
    run_python(f"""
        import test_kerashub
        from mgpu_helpers import devices
        for options in {ROWS[case]}:
            test_kerashub.keeps({case!r}, devices.setup(4).devices, options, True)
    """.replace("\n        ", "\n"), timeout=900, MGPU_MODE="cores")  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("case", PARTS)
def test_parts_that_are_found_are_the_blocks(keras, plan, double, case):
    """By themselves, and by the layout map of a family that has one."""
    model, _ = hub_models.CASES[case]()
    named = {k: v for k, v in PARTS[case].items() if k != "token_embedding"}
    ways = laid_out(fit.use(model, plan.devices, layers=named)).cut.ways
    found = laid_out(fit.use(model, plan.devices, layers="auto")).cut.ways
    assert {*found} == {*ways} and len(found) == 2 * (6 if case == "gpt2" else 7)
    if case != "gpt2":
        mesh = keras.distribution.DeviceMesh((1, 2), ("batch", "model"), ["cpu:0", "cpu:1"])
        fit.use(model, plan.devices, layers=type(model.backbone).get_layout_map(mesh))
        of_map = laid_out(model).cut.ways
        assert of_map.pop(model.backbone.token_embedding).shares == [20, 20] and of_map == ways


@pytest.mark.thorough
def test_parts_of_int8_are_refused(keras, plan):
    model, _ = hub_models.gemma_int8(1)
    with pytest.raises(ValueError, match="query is quantized"):
        fit.use(model, plan.devices, layers=PARTS["gemma"])


def test_stages_begin_at_layers_of_the_model_inside(keras, plan):
    model, _ = hub_models.gemma()
    name = model.backbone.name
    begin = [fit.use(model, plan, stages=[each]) and [*places(model.backbone.weights)]
             for each in (f"{name}/decoder_block_1", "decoder_block_1")]  # fmt: skip
    assert begin[0] == begin[1] and {*begin[0]} == {"CPU:1", "CPU:2"}
    assert {*places(model.backbone.get_layer("decoder_block_1").weights)} == {"CPU:2"}
    assert {*places(model.backbone.token_embedding.weights)} == {"CPU:1"}  # which both use
    with pytest.raises(ValueError, match=f"decoder_block_9.*{name}/decoder_block_1"):
        fit.use(model, plan, stages=["decoder_block_9"])


def test_a_name_that_two_inner_models_have_is_asked_for_in_full(keras, plan):
    inner = [keras.Sequential([keras.Input((4,)), *(keras.layers.Dense(4, name=n) for n in "ab")],
                              name=name) for name in ("left", "right")]  # fmt: skip
    model = keras.Sequential([keras.Input((4,)), *inner])
    for options in ({"stages": ["b"]}, {"recompute": ["b"]}):
        with pytest.raises(ValueError, match="'b' in 2 models: .*left/b or right/b"):
            fit.use(model, plan, **options)
    fit.use(model, plan, stages=["right/b"])
    assert places(model.weights) == ["CPU:1"] * 6 + ["CPU:2"] * 2


@pytest.mark.parametrize("given_it", [False, later(True)])
def test_a_mask_goes_into_the_model_inside(keras, plan, double, given_it):
    """It is of the inputs, or given with them, and the layers inside are still stages."""

    def fitted(options):
        keras.utils.set_random_seed(0)
        block = [keras.layers.Dense(4, "tanh", name=n) for n in "ab"]
        inner = keras.Sequential([keras.Input((5, 4)), *block], name="inner")
        given = keras.Input((5,), dtype="int32")
        x = keras.layers.Embedding(9, 4, mask_zero=not given_it)(given)
        x = inner(x, mask=keras.ops.not_equal(given, 3)) if given_it else inner(x)
        model = keras.Model(given, keras.layers.Dense(3)(x))
        model.compile("adam", fit_models.cross())
        assert "inner/b" in LayerGraph(model).names()
        if options:
            fit.use(model, plan, **options)
        asked = {"batch_size": 10, "verbose": 0, "shuffle": False}
        seen = model.fit(fit_models.TOKENS, fit_models.TAGS, **asked).history
        return [seen, model.get_weights()]

    wanted = fitted({})
    for options in ({"stages": ["inner/b"], "pieces": 2}, {"recompute": True}):
        fit_models.near(fitted(options), wanted, 1e-12)


@pytest.mark.thorough
def test_it_is_to_keras_what_it_was(keras, plan, tmp_path):
    """It writes sentences, its LoRA weights and a preset, and is loaded from them."""
    import keras_hub

    found = []
    for how, options in {"alone": {}, "stages": {"stages": 2}, "parts": PARTS}.items():
        keras.utils.set_random_seed(0)
        model, given = hub_models.gemma()
        if how == "parts":  # which take no LoRA later
            model.backbone.enable_lora(2)
            fit.use(model, plan, layers=options["gemma"])
        else:
            fit.use(model, plan if options else None, **options)
            model.backbone.enable_lora(2)  # of what is laid out, too
        hub_models.compiled(model)
        model.fit(**given, batch_size=6, verbose=0, shuffle=False)
        prompt = {name: x[:2] for name, x in given["x"].items()}
        text = model.generate(prompt, stop_token_ids=None)["token_ids"]
        model.backbone.save_lora_weights(tmp_path / f"{how}.lora.h5")
        model.save_to_preset(str(tmp_path / how))
        again = keras_hub.models.GemmaCausalLM.from_preset(str(tmp_path / how))
        other, _ = hub_models.gemma_lora()
        other.backbone.load_lora_weights(tmp_path / f"{how}.lora.h5")
        lora = [v.numpy() for v in other.backbone.weights if "lora" in v.name]
        assert model.backbone.get_layer("decoder_block_0").quantization_mode is None
        found.append([np.array(text), *again.get_weights(), *lora])
    for alone_, *laid in zip(*found, strict=True):
        for each in laid:
            np.testing.assert_allclose(each, alone_, atol=1e-5)


def test_an_option_without_effect_says_so(keras, plan):
    """And what would have one; nothing is said of options that help, or of small models."""

    def said(model, options, devices=None):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fit.use(fit.alone(model), devices, **options)
        return [str(each.message) for each in caught]

    layers = keras.layers
    base = [layers.Conv2D(n, 3, trainable=False) for n in (20, 30)]
    still = keras.Sequential([keras.Input((64, 64, 3)), *base, layers.Flatten(), layers.Dense(3)])
    image, text = hub_models.vit(width=64, size=32)[0], hub_models.gemma(layers=4, width=64)[0]
    (vit,) = said(image, {"recompute": True})
    assert "vit_encoder" in vit and "98%" in vit and "pieces=4 would hold" in vit
    (stage,) = said(image, {"stages": 2}, plan)
    assert "stage 1 of 2" in stage and "vit_encoder" in stage
    (frozen,) = said(still, {"recompute": True})
    assert "frozen" in frozen and "pieces=4 would hold" in frozen
    (lora,) = said(hub_models.gemma_lora(width=256)[0], {"state": "owners"}, plan)
    assert "state='owners' saves" in lora
    (late,) = said(text, {"stages": ["final_normalization"]}, plan)
    assert "stage 2 of 2" in late and "decoder_block_2'] the poorest" in late
    assert not said(text, {"stages": 2, "recompute": True}, plan)
    assert not said(hub_models.vit()[0], {"recompute": True})


def peaks(plan: Any, model: Any, batch: Any, layout: Layout) -> list[float]:
    fit.use(model, layout)
    step = trace.fit_step(model, batch)
    return [step.peak(device) for device in layout.devices]


@pytest.mark.thorough
def test_recompute_and_stages_hold_half(keras, plan):
    words = np.random.default_rng(0).integers(1, hub_models.WORDS, (16, 65))
    x = {"token_ids": words[:, :-1], "padding_mask": np.ones((16, 64), "int32")}
    model, batch = hub_models.gemma(8, 64)[0], (x, words[:, 1:])
    (whole,) = peaks(plan, model, batch, Layout(plan.devices[:1]))
    (again,) = peaks(plan, model, batch, Layout(plan.devices[:1], recompute=True))
    each = peaks(plan, model, batch, Layout(plan.devices, stages=2))
    assert again <= 0.5 * whole and all(0.4 * whole <= held <= 0.6 * whole for held in each)
    weights = places(v for v in model.weights for _ in range(v.shape.num_elements()))
    assert 0.4 <= weights.count("CPU:1") / len(weights) <= 0.6


@pytest.mark.thorough
def test_a_trace_has_the_layers_of_the_model_inside(keras, plan):
    """By a depth, as `fit.use` names them, also in stages and where they run twice."""
    model, given = hub_models.gemma()
    batch = given["x"], given["y"], given["sample_weight"]
    wanted = {f"{model.backbone.name}/decoder_block_{i}" for i in range(2)}
    for options in ({}, {"recompute": ["decoder_block_1"]}, {"stages": 2}):
        step = trace.fit_step(fit.use(model, plan if options else None, **options), batch)
        found = {row.name: row for row in step.top(None, by="layer", depth=2).rows}
        assert wanted <= found.keys() and not any(name.startswith("decoder") for name in found)
        assert model.backbone.name in {row.name for row in step.top(None, by="layer").rows}
        if "stages" in options:
            assert [found[name].devices for name in sorted(wanted)] == [(d,) for d in plan.devices]
