"""Fine-tune a small Gemma of KerasHub by LoRA, from sentences of one kind to those of another."""

import argparse
import json

import keras
import keras_hub
import numpy as np
import tensorflow as tf

from mgpu_helpers import devices, fit  # added

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--dtype", default="bfloat16", help="float32, bfloat16, …")
parser.add_argument("--epochs", type=int, default=3)
options = parser.parse_args()
keras.utils.set_random_seed(2)
tf.distribute.experimental_set_strategy(fit.strategy(devices.setup()))  # added

BEFORE = [["a", "the"], ["small", "large"], ["dog", "cat", "tree"], ["sees", "likes"]]
AFTER = [["sees", "likes"], ["dog", "cat", "tree"], ["large", "small"], ["the", "a"]]
WORDS = {word: i + 1 for i, word in enumerate(sorted({w for one in BEFORE for w in one}))}
LENGTH = 12


def sentences(order, count, seed):
    """Write sentences as numbers of words, with what is not to be learned masked."""
    random = np.random.default_rng(seed)
    kinds = [order[i % len(order)] for i in range(LENGTH + 1)]
    rows = np.array([[WORDS[random.choice(kind)] for kind in kinds] for _ in range(count)], "int32")
    mask = (np.arange(LENGTH) < random.integers(4, LENGTH + 1, count)[:, None]).astype("int32")
    x = {"token_ids": rows[:, :-1] * mask, "padding_mask": mask}
    return tf.data.Dataset.from_tensor_slices((x, rows[:, 1:], mask.astype("float32"))).batch(48)


def build():
    backbone = keras_hub.models.GemmaBackbone(
        vocabulary_size=len(WORDS) + 1,
        num_layers=2,
        num_query_heads=4,
        num_key_value_heads=1,
        hidden_dim=32,
        intermediate_dim=128,
        head_dim=8,
        dtype=options.dtype,
    )
    return keras_hub.models.GemmaCausalLM(backbone=backbone)


def ready(model, rate):
    """Compile a model, for those of its weights that can be trained now."""
    model.compile(
        keras.optimizers.AdamW(rate, global_clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=["accuracy"],
    )
    return model


model = ready(build(), 0.01)  # in place of GemmaCausalLM.from_preset(...)
model.fit(sentences(BEFORE, 192, seed=0), epochs=4, verbose=2)
model.backbone.enable_lora(8)
trained = sum(weight.shape.num_elements() for weight in model.trainable_weights)
print(f"LoRA trains {trained} of {model.count_params()} weights")

held_out = sentences(AFTER, 40, seed=2)
history = ready(model, 0.02).fit(
    sentences(AFTER, 400, seed=1), validation_data=held_out, epochs=options.epochs, verbose=2
).history

prompt = np.zeros((1, LENGTH), "int32")
prompt[:, :2] = WORDS["sees"], WORDS["dog"]
written = model.generate(
    {"token_ids": prompt, "padding_mask": (prompt > 0).astype("int32")}, stop_token_ids=None
)["token_ids"]
print("written:", *(["", *WORDS][number] for number in np.array(written)[0]))
print(json.dumps(history))
