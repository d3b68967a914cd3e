"""Models as people have them: KerasHub's own classes in small, and the guide to transfer learning.

A case is a function that gives a compiled model, with weights that are drawn, and what its `fit` is
given. Text models take any length, as KerasHub has them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from keras_models import Late, keras, layers

models = Late("keras_hub.models")
SIZE, LENGTH, WORDS, CLASSES = 11, 7, 40, 3
RANDOM = np.random.default_rng(0)
TOKENS = RANDOM.integers(1, WORDS, (SIZE, LENGTH + 1))
KEPT = (np.arange(LENGTH) < RANDOM.integers(2, LENGTH + 1, SIZE)[:, None]).astype("int32")
IMAGES = RANDOM.normal(size=(SIZE, 16, 16, 3))
KINDS = RANDOM.integers(0, CLASSES, SIZE)
TEXT = {
    "x": {"token_ids": TOKENS[:, :-1] * KEPT, "padding_mask": KEPT},
    "y": TOKENS[:, 1:],
    "sample_weight": KEPT.astype("float32"),
}


def compiled(model: Any, rate: float = 0.01) -> Any:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    weighted = [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]
    model.compile(keras.optimizers.Adam(rate), loss, weighted_metrics=weighted)
    return model


def written(layers: int, width: int, **others: Any) -> dict[str, Any]:
    """Give the sizes of a text model, as most of KerasHub's take them."""
    sizes = {"vocabulary_size": WORDS, "num_layers": layers, "hidden_dim": width}
    return sizes | {"num_heads": 2, "intermediate_dim": 4 * width, "dropout": 0.0} | others


def gpt2(layers: int = 2, width: int = 8, **options: Any) -> Any:
    sizes = written(layers, width, max_sequence_length=64, **options)
    backbone = models.GPT2Backbone(**sizes)
    return compiled(models.GPT2CausalLM(backbone=backbone)), TEXT


def bert(layers: int = 2, width: int = 8, **options: Any) -> Any:
    sizes = written(layers, width, max_sequence_length=64, **options)
    backbone = models.BertBackbone(**sizes)
    x = TEXT["x"] | {"segment_ids": np.zeros_like(KEPT)}
    model = models.BertTextClassifier(backbone=backbone, num_classes=CLASSES, dropout=0.0)
    return compiled(model), {"x": x, "y": KINDS}


def gemma(layers: int = 2, width: int = 8, **options: Any) -> Any:
    backbone = models.GemmaBackbone(
        vocabulary_size=WORDS, num_layers=layers, num_query_heads=2, num_key_value_heads=1,
        hidden_dim=width, intermediate_dim=8 * width, head_dim=width // 2, **options,
    )  # fmt: skip
    return compiled(models.GemmaCausalLM(backbone=backbone)), TEXT


def gemma_lora(*sizes: int, **options: Any) -> Any:
    model, given = gemma(*sizes, **options)
    model.backbone.enable_lora(2)
    return compiled(model), given


def gemma_int8(*sizes: int, **options: Any) -> Any:
    model, given = gemma(*sizes, **options)
    model.quantize("int8")
    model.backbone.enable_lora(2)
    return compiled(model), given


def gemma_bfloat16(**options: Any) -> Any:
    return gemma_lora(dtype="bfloat16", **options)


def llama(layers: int = 2, width: int = 8, **options: Any) -> Any:
    backbone = models.LlamaBackbone(
        vocabulary_size=WORDS, num_layers=layers, num_query_heads=2, num_key_value_heads=1,
        hidden_dim=width, intermediate_dim=4 * width, **options,
    )  # fmt: skip
    return compiled(models.LlamaCausalLM(backbone=backbone)), TEXT


def bart(layers: int = 2, width: int = 8) -> Any:
    """Read by an encoder, and write by a decoder, from one table of words."""
    backbone = models.BartBackbone(**written(layers, width, max_sequence_length=64))
    x = {f"{side}_{name}": x for side in ("encoder", "decoder") for name, x in TEXT["x"].items()}
    return compiled(models.BartSeq2SeqLM(backbone=backbone)), TEXT | {"x": x}


def whisper(layers: int = 2, width: int = 8) -> Any:
    """Write what is heard: sounds go in beside words."""
    sizes = written(layers, width, num_mels=5, max_encoder_sequence_length=64)
    backbone = models.WhisperBackbone(**sizes)
    made = backbone(backbone.input)["decoder_sequence_output"]
    model = keras.Model(backbone.input, backbone.token_embedding(made, reverse=True))
    x = {f"decoder_{name}": x for name, x in TEXT["x"].items()}
    x["encoder_features"] = np.random.default_rng(0).normal(size=(SIZE, 12, 5))
    return compiled(model), TEXT | {"x": x}


def segformer(width: int = 4) -> Any:
    """Say of each pixel what it is, from features of two sizes."""
    encoder = models.MiTBackbone(
        layerwise_depths=[1, 1], num_layers=2, layerwise_num_heads=[1, 2], max_drop_path_rate=0.0,
        layerwise_sr_ratios=[2, 1], layerwise_patch_sizes=[3, 3], layerwise_strides=[2, 2],
        image_shape=(16, 16, 3), hidden_dims=[width, 2 * width],
    )  # fmt: skip
    backbone = models.SegFormerBackbone(image_encoder=encoder, projection_filters=8)
    model = models.SegFormerImageSegmenter(backbone=backbone, num_classes=CLASSES)
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.Dropout):
            layer.rate = 0.0
    pixels = np.random.default_rng(0).integers(0, CLASSES, (SIZE, 16, 16))
    model = compiled(model, 0.001)
    model.compile(model.optimizer, model.loss, metrics=[])  # KerasHub's own is for one-hot labels
    return model, {"x": IMAGES, "y": pixels}


def vit(layers: int = 2, width: int = 8, size: int = 16, **options: Any) -> Any:
    backbone = models.ViTBackbone(
        image_shape=(size, size, 3), patch_size=4, num_layers=layers, num_heads=2,
        hidden_dim=width, mlp_dim=4 * width, **options,
    )  # fmt: skip
    model = models.ViTImageClassifier(backbone=backbone, num_classes=CLASSES)
    return compiled(model), {"x": IMAGES, "y": KINDS}


def resnet(width: int = 64, size: int = 16, **options: Any) -> Any:
    backbone = models.ResNetBackbone(
        input_conv_filters=[width], input_conv_kernel_sizes=[3],
        stackwise_num_filters=[width, 2 * width], stackwise_num_blocks=[2, 2],
        stackwise_num_strides=[1, 2], block_type="basic_block", image_shape=(size, size, 3),
        **options,
    )  # fmt: skip
    model = models.ResNetImageClassifier(backbone=backbone, num_classes=CLASSES)
    return compiled(model, 0.001), {"x": IMAGES, "y": KINDS}


def transfer(size: int = 32, trained: bool = False, alpha: float = 0.35) -> Any:
    """Put layers on a base that is frozen, or trained in a second phase, as Keras's guide does."""
    shape = (size, size, 3)
    base = keras.applications.MobileNetV2(shape, alpha, include_top=False, weights=None)
    base.trainable = trained
    given = keras.Input(shape)
    x = base(layers.Rescaling(0.5)(given), training=False)
    x = layers.Dropout(0.0)(layers.GlobalAveragePooling2D()(x))
    model = keras.Model(given, layers.Dense(CLASSES)(x))
    images = np.random.default_rng(0).normal(size=(SIZE, *shape))
    return compiled(model, 0.001), {"x": images, "y": KINDS}


def transfer_trained(**options: Any) -> Any:
    return transfer(trained=True, **options)


CASES = {each.__name__: each for each in (
    gpt2, bert, gemma, gemma_lora, gemma_int8, gemma_bfloat16, llama, bart, whisper, vit, resnet,
    segformer, transfer, transfer_trained,
)}  # fmt: skip
