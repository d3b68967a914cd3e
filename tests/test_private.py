"""Canaries: each name that is not public, tried alone, so that a new version fails here first."""

from __future__ import annotations

import ast
import contextlib
import inspect
import pkgutil
import re
from pathlib import Path

import numpy as np
import pytest

from mgpu_helpers import _private

HOUSE = Path(_private.__file__).parent
FILES = sorted(HOUSE.rglob("*.py"))
HIDDEN = re.compile(r"\^?_[a-zA-Z]\w*|keras\.src\b|tensorflow\.(python|core|compiler|_api)\b")
OURS = {"_exit", "_replace", "_images", "_labels", "_restart_", "_v2", "_Name"}  # two public


def private_names(code: str) -> set[str]:
    """List what code names, or has as a string, that is private in Keras or TensorFlow."""
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Attribute):
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            found |= set() if own else {node.attr}
        elif isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            if not (node.module or "").startswith("mgpu_helpers"):
                found |= {f"{node.module}.{each.name}" for each in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= {node.value}
    return {name for name in found - OURS if HIDDEN.match(name)}


@pytest.mark.parametrize("code", [
    "model._nodes", 'getattr(model, "_nodes", None)', 'layer.__dict__["_moments"]',
    "from keras.src import tree", "import tensorflow.python.eager", 're.sub("^_Mkl", "", op)',
    'find("tensorflow.python.distribute")', 'f"^_Mkl{rest}"',
])  # fmt: skip
def test_a_private_name_is_found_however_it_is_written(code: str):
    assert len(private_names(code)) == 1


def test_private_names_stand_in_one_file():
    named = {str(file.relative_to(HOUSE)): private_names(file.read_text()) for file in FILES}
    assert [file for file, names in named.items() if names] == ["_private.py"]


def test_each_private_name_has_a_canary():
    """Which uses it, or says in its docstring what it tries."""
    tests = [inspect.getsource(each) for name, each in globals().items() if name[:5] == "test_"]
    tried = set(re.findall(r"\w+", " ".join([THERE, *_private.KERAS.values(), *tests])))
    used = {name.rpartition(".")[2] for name in private_names(Path(_private.__file__).read_text())}
    assert used and used <= tried


#: Names without which the first use raises an error, and of which tests of other rooms see what
#: they do.
THERE = """
keras.src.backend.AutocastScope keras.src.backend.get_autocast_scope
keras.src.backend.get_keras_mask keras.src.backend.set_keras_mask
keras.src.backend.common.global_state keras.src.backend.tensorflow.trainer.tf
keras.src.losses.loss.apply_mask keras.Layer._flatten_layers
keras.Layer._get_call_context keras.Layer._maybe_reset_call_context keras.Model._symbolic_build
tensorflow.Graph._get_function tensorflow.Operation._add_control_inputs
tensorflow.Operation._set_attr tensorflow.Operation._set_device
tensorflow.compiler.tf2xla.python.xla.optimization_barrier
tensorflow.python.distribute.values.DistributedVariable
tensorflow.python.eager.context.Context.clear_kernel_cache
tensorflow.python.eager.context.Context.config
tensorflow.python.eager.context.Context.device_name
tensorflow.python.eager.context.Context.enable_graph_collection
tensorflow.python.eager.context.Context.ensure_initialized
tensorflow.python.eager.context.Context.export_run_metadata
tensorflow.python.eager.context._set_context
tensorflow.python.eager.lift_to_graph.UnliftableError
tensorflow.python.eager.record.stop_recording
tensorflow.python.framework.kernels.get_all_registered_kernels
tensorflow.python.ops.handle_data_util.get_resource_handle_data
tensorflow.python.ops.resource_variable_ops.UninitializedVariable
"""


@pytest.mark.parametrize("path", [*THERE.split(), *_private.KERAS.values()])
def test_a_name_is_there(path: str):
    assert pkgutil.resolve_name(path)


def test_attributes_are_there(tf, keras):
    """Without which the first use raises an error, or tests of `fit` fail."""
    from keras.src.backend.tensorflow.trainer import TFEpochIterator
    from tensorflow.python.eager.context import context

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("adamw", "mse")
    model.optimizer.exclude_from_weight_decay([])
    iterator = TFEpochIterator(tf.distribute.get_strategy(), tf.data.Dataset.range(2).batch(2))
    model.train_on_batch(np.ones([4, 2]), np.ones([4, 1]))
    for of, names in (
        (model, "_compile_config _compile_loss _compile_metrics _distribute_strategy"),
        (model, "_initial_epoch _functional"), (model._functional, "_nodes_by_depth"),
        (model.layers[0], "_losses _trainable_variables"), (model._compile_loss, "_flat_losses"),
        (context(), "_initialized _memory_growth_map _physical_devices _visible_device_list"),
        (iterator, "_current_iterator _distributed_dataset _enumerate_iterator _num_batches"),
        (iterator, "_steps_seen"), (model.optimizer, "_exclude_from_weight_decay"),
        (model.optimizer, "_distribution_strategy _learning_rate _trainable_variables _var_key"),
    ):  # fmt: skip
        assert {*names.split()} <= {*dir(of)}


def test_captured(tf):
    """Try captures."""
    outside, seen = tf.constant(1.0), []

    @tf.function
    def function(x):
        y = x + outside
        seen.extend(_private.captured(each) is outside for each in y.op.inputs)
        return y

    function(tf.ones([]))
    assert seen == [False, True]


def test_move(tf, keras):
    """Try _unique_id, _value."""
    layer = keras.layers.Dense(2)
    layer.build((None, 3))
    adam, kernel, before = keras.optimizers.Adam(), layer.kernel, layer.kernel.value
    adam.build([kernel])
    wanted = kernel.numpy()
    _private.move(kernel, "/CPU:1")
    assert layer.kernel is kernel and kernel.value.device.endswith("CPU:1")
    np.testing.assert_array_equal(kernel.numpy(), wanted)
    adam.apply([tf.ones([3, 2])], [kernel])  # which raises an error for a variable not known
    assert (kernel.numpy() < wanted).all()
    assert before.numpy().size == 0


def test_logits(tf, keras):
    """Try _keras_logits, of activations and of losses.

    With logits of 1000 a loss of the probabilities alone would be that of what is clipped.
    """
    x = tf.constant([[1.0, 2.0]])
    for name in ("softmax", "sigmoid"):
        made = keras.activations.get(name)(x)
        assert _private.logits_of(made) is x and _private.logits_of(tf.identity(made)) is None
    made, logits = tf.constant([[1.0, 0.0]]), tf.constant([[1000.0, 0.0]])
    _private.set_logits(made, logits)
    assert keras.losses.sparse_categorical_crossentropy(tf.constant([1]), made).numpy() == 1000


def test_equal_draws_and_global_seeds(tf, keras):
    """Try gen_random_ops, gen_stateless_random_ops_v2, global_seed_generator."""
    keras.utils.set_random_seed(1)
    seeds, shape = _private.global_seeds(), tf.constant([3, 2])
    assert seeds is _private.global_seeds() and seeds.state.shape == (2,)
    draws = [
        lambda: keras.random.normal([3, 2], seed=1), lambda: keras.random.uniform([3, 2], seed=1),
        lambda: keras.random.truncated_normal([3, 2], seed=1),
        lambda: keras.random.randint([3, 2], 0, 1000, seed=1),
        lambda: keras.random.dropout(tf.ones([3, 2]), 0.5, seed=1),
        lambda: tf.random.normal(shape), lambda: tf.random.uniform(shape),
        lambda: tf.random.truncated_normal(shape),
        lambda: tf.random.uniform(shape, 0, 1000, tf.int32),
    ]  # fmt: skip
    with _private.equal_draws():
        inside = [np.array(draw()) for draw in draws]
        assert keras.random.normal([], seed=1).shape == ()
    for x, draw in zip(inside, draws, strict=True):
        assert (x == x[0]).all() and x.shape == (3, 2)
        assert draw is draws[4] or not (np.array(draw()) == x).all()


def test_a_pass_begins_after_the_steps_that_were_done():
    from keras.src.trainers.epoch_iterator import EpochIterator

    iterator = EpochIterator(np.arange(10), batch_size=2)
    _private.before_steps(iterator, lambda it: 3)
    first, second = [
        [(step, int(np.ravel(batch[0])[0])) for step, _, batch in iterator] for _ in range(2)
    ]  # fmt: skip
    assert first == [(3, 6), (4, 8)] and second == [(i, 2 * i) for i in range(5)]


def test_save_backup(keras, tmp_path):
    """Try _weights_path, _training_metadata_path: where a backup fails, the one before stays."""
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
    backup.set_model(model)
    before = [weight.copy() for weight in model.get_weights()]
    for passes, beside in (3, (tmp_path / "beside").touch), (4, (tmp_path / "none" / "x").touch):
        with contextlib.nullcontext() if passes == 3 else pytest.raises(FileNotFoundError):
            _private.save_backup(backup, passes, beside)
        model.set_weights([0 * weight for weight in before])
        backup.on_train_begin()
        assert _private.first_pass(model) == 3 and (tmp_path / "beside").exists()
        assert all((a == b).all() for a, b in zip(model.get_weights(), before, strict=True))


def test_numbered(tf):
    """Try _collective_key_base."""
    number = tf.distribute.MirroredStrategy._collective_key_base
    kind = _private.numbered(type("Kind", (tf.distribute.MirroredStrategy,), {}), 7)
    made = kind(["/cpu:1", "/cpu:2"]).extended
    assert made._collective_keys.get_group_key(["/cpu:1"]) > 700_000 > number


def test_keep_apart_and_collected_graphs(tf):
    """Try _grappler_do_not_remove: Grappler would make one sum of two."""

    def sums(apart):
        @tf.function
        def step(a, b, c):
            first = tf.add_n([a, b])
            if apart:
                _private.keep_apart(first.op)
            return tf.add_n([first, c])

        _private.collect_graphs()
        step(*(tf.ones([2]) for _ in range(3)))
        graphs = _private.collected_graphs()
        return [node.op for graph in graphs for node in graph.node].count("AddN")

    assert (sums(False), sums(True)) == (1, 2)


def test_makes_variables(tf):
    """Try UnliftableError."""
    random = tf.random.stateless_uniform
    for once in lambda x: tf.Variable(random([2], [1, 2]) + x), lambda x: tf.Variable(1.0):
        with pytest.raises(Exception) as caught:
            tf.function(once).get_concrete_function(tf.zeros([2]))
        assert _private.makes_variables(caught.value)
    assert not _private.makes_variables(ValueError("another"))


def test_types_of_operations(plan):
    """Try _Arg, _Retval, _DeviceArg, _DeviceRetval, _EagerConst.

    And _Send, _HostSend, _Recv, _HostRecv.
    """
    from tensorflow.python.framework import op_def_registry

    kinds = _private.BOUNDARY | _private.SENDS | _private.RECEIVES
    assert not [kind for kind in kinds if op_def_registry.get(kind) is None]


def test_compiles(tf):
    """Try _XlaMustCompile, kernels, and _class.

    XLA has kernels for an operation by the type of what it computes.
    """
    added = tf.function(lambda x: x + 1, jit_compile=True).get_concrete_function(tf.zeros([2]))
    assert added.function_def.attr[_private.MUST_COMPILE].b
    with tf.Graph().as_default():
        text = tf.constant("1")
        with tf.compat.v1.colocate_with(text):
            number = tf.strings.to_number(text)
        added = number + 1
    assert _private.compiles(added.op) and not _private.compiles(number.op)
    assert number.op.get_attr(_private.PLACED)


def test_names_in_a_graph_and_uses_onednn(tf):
    """Try _arg_, _cloop, _Mkl, _pywrap_util_port.IsMklEnabled."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        given = tf.compat.v1.placeholder(tf.float32, [64, 64], name="given")
        with tf.device("/CPU:1"):
            product = tf.matmul(given, given)

        def once(i, x):
            with tf.device("/CPU:2"):
                return i + 1, x * 2

        looped = tf.compat.v1.while_loop(lambda i, x: i < 2, once, (0, product))[1]
        record = tf.compat.v1.RunMetadata()
        options = tf.compat.v1.RunOptions(output_partition_graphs=True)
        session.run(looped, {given: np.ones((64, 64))}, options, record)
    nodes = [node for graph in record.partition_graphs for node in graph.node]
    for begins in (_private.FED + "given_", _private.LOOP):
        assert any(node.name.startswith(begins) for node in nodes), begins
    swapped = any(node.op.startswith(_private.ONEDNN) for node in nodes)
    assert swapped == _private.uses_onednn()


def test_call_of(tf, keras):
    """Try _get_call_context, _maybe_reset_call_context: a layer keeps what two calls add."""
    layer = keras.layers.Dense(2, activity_regularizer="l2")
    model = keras.Sequential([keras.Input((2,)), layer])
    for calls in (2, 1):  # the losses of the second block are its own
        with _private.call_of(model):
            for _ in range(calls):
                layer(tf.ones([1, 2]))
        assert len(model.losses) == calls


def test_of_attention(keras):
    """Try _dense behind what a projection is of, and _num_heads."""
    names = {*_private.QUERIES, *_private.KEYS, *_private.FOR_EACH_KEY}
    for make, told in (
        (keras.layers.MultiHeadAttention, ["_num_heads"]),
        (lambda heads, size: keras.layers.GroupQueryAttention(size, heads, heads),
         ["num_key_value_heads", "num_query_heads", "num_repeats"]),
    ):  # fmt: skip
        layer, x = make(2, 3), np.ones((1, 2, 4))
        layer(x, x)
        found = _private.of_attention(layer)
        assert [own.name for own in found.values()] == ["query", "key", "value", "attention_output"]
        assert sorted(names & vars(layer).keys()) == told
    assert not _private.of_attention(keras.layers.Dense(2))


def test_losses_as(tf, keras):
    """Try _flat_losses: a batch counts in the mean of each loss for what is said."""
    given, ones = keras.Input((2,)), tf.ones([4, 1])
    made = keras.layers.Dense(1)(given)
    model = keras.Model(given, [made, made])
    model.compile("adam", ["mse", "mae"])
    _private.build(model, (tf.ones([4, 2]), (ones, ones)))
    with _private.losses_as(model, lambda which, loss: loss, 0.25):
        _private.compiled_losses(model, [ones] * 2, [ones] * 2, None)
    assert 0.25 in [float(v.numpy()) for v in model.metrics_variables]


def test_autocast(tf, keras):
    """Try keras.src.backend.AutocastScope, get_autocast_scope, global_state."""

    class Reads(keras.layers.Layer):
        def build(self, shape):
            self.weight = self.add_weight(shape=(1,))

        def call(self, x):
            with _private.without_autocast():
                seen.append(tf.convert_to_tensor(self.weight).dtype)
            seen.append(tf.convert_to_tensor(self.weight).dtype)
            return x, _private.autocast_here()

    reads, seen = Reads(dtype="mixed_float16"), []
    for block in reads(tf.ones([1, 1]))[1], _private.autocast_here():
        with block:
            seen.append(tf.convert_to_tensor(reads.weight).dtype)
    assert seen == [tf.float32, tf.float16, tf.float16, tf.float32]


def test_twins(keras):
    """Try _compile_config, _compile_loss, _compile_metrics.

    A twin is compiled anew and trains the same weights; the model keeps what it was given.
    """
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    loss, optimizer = keras.ops.subtract, keras.optimizers.SGD()
    model.compile(optimizer, loss, metrics=["mae"])
    given = _private.compiled_with(model)
    assert given["loss"] is loss and given["metrics"] == ["mae"]
    twin, before = _private.twin_of(model), model.get_weights()
    keras.Model.compile(twin, "adam", "mse", metrics=[])
    twin.train_on_batch(np.ones([4, 2], "f"), np.zeros([4, 1], "f"))
    assert not np.array_equal(model.get_weights()[0], before[0])
    assert model.loss is loss and model.optimizer is optimizer
    assert [metric.name for metric in model.metrics] == ["loss", "compile_metrics"]


def test_rate_and_settings_and_slots(keras):
    """Try _learning_rate, _trainable_variables."""
    weights = [keras.Variable(np.ones(2, "f")), keras.Variable(1.0)]
    sgd = keras.optimizers.SGD(lambda: 0.5, momentum=0.25)
    sgd.build(weights)
    rate, settings = _private.rate_and_settings(sgd)
    assert rate() == 0.5 == float(sgd.learning_rate) and settings["momentum"] == 0.25
    kept = _private.slots_of(sgd)
    assert [[slot.shape for slot in kept[id(weight)]] for weight in weights] == [[(2,)], []]


def test_keras_hands_on_what_says_all_in_a_sentence(keras):
    """Try _keras_call_info_injected."""

    class Refuses(keras.layers.Layer):
        def call(self, x):
            raise _private.Unwrapped("one sentence")

    with pytest.raises(_private.Unwrapped) as caught:
        Refuses()(np.ones([1, 3]))
    assert str(caught.value) == "one sentence"
