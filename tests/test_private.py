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

from mgpu_helpers import _private, fit

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
    """Which says in its docstring what it tries."""
    tests = [each for name, each in globals().items() if name.startswith("test_")]
    tried = set(re.findall(r"\w+", " ".join(str(test.__doc__) for test in tests)))
    used = {name.rpartition(".")[2] for name in private_names(Path(_private.__file__).read_text())}
    assert used and used <= tried


def test_configured_and_device_around(tf):
    """Try context.config, context.device_name."""
    assert isinstance(_private.configured(), tf.compat.v1.ConfigProto)
    assert _private.configured().inter_op_parallelism_threads == 2  # the plan's
    assert _private.device_around() is None
    with tf.device("/CPU:1"):
        assert _private.device_around().endswith("/device:CPU:1")


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


def test_mend(plan):
    """Try scale_loss_for_distribution, unscale_loss_for_distribution, reduce_weighted_values, call.

    And _all_reduce_sum_gradients, _maybe_symbolic_build, _compute_loss, _get_own_losses,
    _clear_losses, _aggregate_additional_loss, _resolve_auto_jit_compile, get_attr_skipset,
    _get_dependent_variables, all_reduce, all_gather, assign.
    """
    arguments = {
        "scale": "value", "unscale": "value", "moments": "self inputs mask",
        "seeds": "self ordered", "reduce": "values sample_weight mask reduction dtype",
        "sum": "self grads_and_vars", "losses": "self y_true y_pred sample_weight",
        "apply": "self grads trainable_variables", "apply_scaled": "self grads trainable_variables",
        "build": "self iterator data_batch", "built": "self input_shape",
        "whole": "self x y y_pred sample_weight training", "mean": "self values sample_weight",
        "float": "self", "int": "self", "compiles": "self", "train": "self force",
        "test": "self force", "predict": "self force", "added": "self loss", "owned": "self",
        "cleared": "self",
        "own": "self x y y_pred sample_weight training", "additional": "self loss",
        "gradient": "self target sources output_gradients unconnected_gradients",
        "unsaved": "obj_type", "all_reduce": "self reduce_op value options",
        "search": "input_ops output_ops", "assign": "self value",
        "all_gather": "self value axis options",
    }  # fmt: skip
    for which, names in arguments.items():
        has = inspect.unwrap(pkgutil.resolve_name(_private.KERAS[which]))
        assert list(inspect.signature(has).parameters) == names.split(), which


def test_losses_kept(tf, keras):
    """Try _losses."""
    layer = keras.layers.Dense(1)
    layer.add_loss(tf.constant(2.0))
    _private.losses_kept(layer).append(3.0)
    assert layer.losses == [2.0, 3.0]


def test_of_strategy_and_held(tf, keras, plan):
    """Try _distribution_strategy, _distribute_strategy, _value."""
    with fit.strategy(plan).scope():
        optimizer, variable = keras.optimizers.SGD(), keras.Variable([1.0])
        model = keras.Sequential([keras.layers.Dense(1)])
    with _private.without_strategy(model):
        assert model.distribute_strategy.num_replicas_in_sync == 1
    assert model.distribute_strategy.num_replicas_in_sync == 2
    first, second = variable.value.values
    optimizer.build([variable])
    with _private.held(variable, _private.VALUE, first):
        assert variable.value is first
        with pytest.raises(AssertionError):
            optimizer.apply([tf.ones([1])], [variable])
        with _private.of_strategy(optimizer, tf.distribute.get_strategy()):
            optimizer.apply([tf.ones([1])], [variable])
    assert variable.value.values == (first, second) and first.numpy() < second.numpy() == 1


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


def test_weights_of_loss(tf):
    """Try apply_mask."""
    mask, weight = tf.constant([True, False]), tf.constant([3.0, 5.0])
    merged = _private.weights_of_loss(weight, mask, "float32", "mean_with_sample_weight")
    assert merged.numpy().tolist() == [3, 0]


def test_what_fit_keeps(tf, keras):
    """Try _distributed_dataset, _initial_epoch, _enumerate_iterator.

    Also _current_iterator, _steps_seen, _num_batches.
    """
    from keras.src.backend.tensorflow.trainer import TFEpochIterator

    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    assert _private.first_pass(model) == 0
    _private.build(model, (tf.TensorSpec([None, 2]), tf.TensorSpec([None, 1])))
    assert model.built and model.optimizer.built
    strategy = tf.distribute.get_strategy()
    data = tf.data.Dataset.range(2).batch(2)
    iterator = TFEpochIterator(strategy, data, steps_per_epoch=3)
    assert next(iter(_private.dataset_of(iterator))).shape == 2
    _private.before_steps(iterator, lambda it: _private.go_on(it, iter(data), 3, 4) or 0)
    with pytest.warns(UserWarning, match="ran out of data"):
        assert [step for step, *_ in iterator] == [0]
    assert "_enumerate_iterator" not in vars(iterator)


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


def test_pretended_and_started(tf):
    """Try _initialized, _set_context, _physical_devices, _visible_device_list.

    And _memory_growth_map.
    """
    before = tf.config.list_logical_devices()
    gpus = [tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")]
    with _private.pretended(gpus):
        assert tf.config.list_physical_devices("GPU") == gpus
        assert tf.config.get_visible_devices("GPU") == gpus
        tf.config.experimental.set_memory_growth(gpus[0], True)
        assert tf.config.experimental.get_memory_growth(gpus[0]) and not _private.started()
    assert _private.started() and tf.config.list_logical_devices() == before


def test_collected_graphs(tf):
    """Try ensure_initialized, clear_kernel_cache, graph_collection and export_run_metadata."""
    _private.collect_graphs()
    with tf.device("/CPU:1"):
        tf.add(1.0, 2.0)
    graphs = _private.collected_graphs()
    placed = {node.op: node.device for graph in graphs for node in graph.node}
    assert placed["AddV2"].endswith("/device:CPU:1")


def test_function_graph(tf):
    """Try _get_function."""
    inner = tf.function(lambda x: x + 1)
    outer = tf.function(lambda x: inner(x)).get_concrete_function(tf.TensorSpec([3])).graph
    (call,) = (op for op in outer.get_operations() if "PartitionedCall" in op.type)
    graph = _private.function_graph(outer, call.get_attr("f").name)
    assert "AddV2" in [op.type for op in graph.get_operations()]
    assert graph.outputs[0].shape == (3,)


def test_keep_apart(tf):
    """Try op._set_attr, _grappler_do_not_remove: an operation has it after it is set."""
    with tf.Graph().as_default():
        total = tf.add_n([tf.constant([1.0]), tf.constant([2.0])])
        _private.keep_apart(total.op)
    assert total.op.get_attr("_grappler_do_not_remove")


def test_wait_for_and_place(tf):
    """Try _add_control_inputs, _set_device."""
    with tf.Graph().as_default():
        first, second = tf.no_op(), tf.no_op()
        _private.wait_for(first, [second])
        _private.place(first, "/device:CPU:1")
    assert (first.control_inputs, first.device) == ([second], "/device:CPU:1")


def test_resource_data(tf):
    """Try get_resource_handle_data."""
    variable = tf.Variable(tf.zeros([2, 3]))
    concrete = tf.function(lambda: variable + 1).get_concrete_function()
    data = _private.resource_data(concrete.inputs[0])
    about = data.shape_and_type[0]
    assert data.is_set and (about.dtype, tf.TensorShape(about.shape)) == (tf.float32, (2, 3))


def test_variable_without_value(tf):
    """Try UninitializedVariable."""
    made = _private.variable_without_value(shape=[2], dtype=tf.float32, trainable=False, name="w")
    told = made.name, made.shape, made.trainable, bool(made.is_initialized())
    assert told == ("w:0", (2,), False, False)


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

    @tf.function
    def step(x, text):
        with tf.compat.v1.colocate_with(text):
            number = tf.strings.to_number(text)
        return tf.matmul(x, x), number, tf.numpy_function(lambda a: a, [x], tf.float32)

    specs = tf.TensorSpec([2, 2]), tf.TensorSpec([], "string")
    ops = {op.type: op for op in step.get_concrete_function(*specs).graph.get_operations()}
    known = {kind: _private.compiles(ops[kind]) for kind in ("MatMul", "StringToNumber", "PyFunc")}
    assert known == {"MatMul": True, "StringToNumber": False, "PyFunc": False}
    assert ops["StringToNumber"].get_attr(_private.PLACED)


def test_together(tf):
    """Try xla."""
    found = tf.function(_private.together, jit_compile=True)(tf.ones([2]), tf.zeros([3]))
    assert [x.shape for x in found] == [[2], [3]]


def test_functions_by(keras):
    """Try trainer."""
    made = []
    with _private.functions_by(lambda function, **asked: made.append(asked) or function):
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", jit_compile=True)
        model.make_train_function()
        model.make_predict_function()
    assert len(made) == 4 and sum("jit_compile" in asked for asked in made) == 2


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


def block_of(keras):
    """Make a layer with one inside, which adds to the loss at each call."""

    class Block(keras.layers.Layer):
        def __init__(self):
            super().__init__(name="block")
            self.inner = keras.layers.Dense(2, activity_regularizer="l2", name="inner")

        def call(self, x):
            return self.inner(x)

    return Block()


def test_layers_of_and_inside(keras):
    """Try _flatten_layers."""
    block = block_of(keras)
    model = keras.Sequential([keras.Input((2,)), block], name="model")
    assert {"model", "block", "inner"} <= {layer.name for layer in _private.layers_of(model)}
    assert [layer.name for layer in _private.inside(block)] == ["inner"]


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


def test_calls_of(keras):
    """Try _nodes_by_depth."""
    given, block = keras.Input((2,)), block_of(keras)
    middle = block(given)
    model = keras.Model(given, keras.layers.Add(name="add")([block(middle), middle]))
    calls = _private.calls_of(model)
    assert [call.operation.name for call in calls] == ["block", "block", "add"]
    assert calls[0].input_tensors == [given] and calls[0].outputs == [middle]
    args, named = _private.run_call(calls[1], {id(middle): "its value"})
    assert (args, named) == (("its value",), {})


def test_call_of(tf, keras):
    """Try _get_call_context, _maybe_reset_call_context."""
    block = block_of(keras)
    model = keras.Sequential([keras.Input((2,)), block])
    for calls in (2, 1):  # the losses of the second are its own
        with _private.call_of(model):
            for _ in range(calls):
                block(tf.ones([1, 2]))
        assert len(model.losses) == calls
    with pytest.raises(LookupError), _private.call_of(model):
        raise LookupError
    model(tf.ones([1, 2]))
    assert len(model.losses) == 1  # no call was left open
    drops = keras.layers.Dropout(0.5)
    with _private.call_of(keras.layers.Layer(), training=True):
        assert 0 in drops(tf.ones([100])).numpy()


def test_losses_as(tf, keras):
    """Try _symbolic_build, _compile_loss, _flat_losses."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"])
    batch = tf.ones([4, 2]), tf.ones([4, 1])
    _private.build(model, batch)
    assert model.optimizer.built and model.metrics_variables
    with _private.losses_as(model, lambda which, loss: lambda *_: tf.constant(7.0 + which)):
        assert model.compute_loss(*batch, model(batch[0])) == 7.0
    assert model.compute_loss(*batch, batch[1]) == 0.0
    two = keras.Model(model.inputs, [model.outputs[0], model.outputs[0]])
    two.compile("adam", ["mse", "mae"])
    _private.build(two, (batch[0], (batch[1], batch[1])))
    with _private.losses_as(two, lambda which, loss: loss, 0.25):
        _private.compiled_losses(two, [batch[1]] * 2, [batch[1]] * 2, None)
    kept = [float(v.numpy()) for v in two.metrics_variables]
    assert 0.25 in kept


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


def test_unrecorded(tf):
    """Try record.stop_recording."""
    x = tf.constant(3.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        with _private.unrecorded():
            y = x * x
        z = 2 * x
    assert tape.gradient([y, z], x).numpy() == 2.0


def test_masks(tf, keras):
    """Try get_keras_mask, set_keras_mask."""
    masked, outputs = keras.layers.Masking()(tf.constant([[[1.0], [0.0]]])), tf.ones([1, 2, 1])
    assert _private.mask_of(masked).numpy().tolist() == [[True, False]]
    assert _private.mask_of(outputs) is None
    _private.set_mask(outputs, tf.constant([[True, False]]))
    assert keras.losses.MeanSquaredError()(tf.constant([[[0.0], [5.0]]]), outputs).numpy() == 1


def test_moments(tf, keras):
    """Try _moments, to compute them, and to replace them."""
    layer, x = keras.layers.BatchNormalization(epsilon=0), tf.constant([[1.0], [5.0]])
    own = layer(x, training=True).numpy().tolist()
    np.testing.assert_allclose(_private.moments(layer, x, None), [[3.0], [4.0]], rtol=1e-6)
    mean, _ = _private.moments(layer, x, tf.constant([True, False]))
    np.testing.assert_allclose(mean, [1.0], rtol=1e-6)
    with _private.with_moments(layer, tf.constant([3.0]), tf.constant([1.0])):
        assert layer(x, training=True).numpy().tolist() == [[-2.0], [2.0]]
    assert layer(x, training=True).numpy().tolist() == own == [[-1.0], [1.0]]


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


def test_exclude_too(keras):
    """Try _var_key, _exclude_from_weight_decay."""
    adamw = keras.optimizers.AdamW(0.1, weight_decay=0.5)
    weights = [keras.Variable(np.ones(2, "f")) for _ in "abc"]
    adamw.exclude_from_weight_decay(weights[:1])
    _private.exclude_too(adamw, weights[0], weights[1:2])
    _private.exclude_too(adamw, weights[2], weights[2:])
    adamw.build(weights)
    adamw.apply([np.zeros(2, "f")] * 3)
    a, b, c = (weight.numpy()[0] for weight in weights)
    assert a == b == 1 > c


def test_stand_in(keras):
    """Try _trainable_variables, of a layer."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    (kernel, bias), others = model.weights, [keras.Variable(np.ones(2, "f")) for _ in "ab"]
    _private.stand_in(model, [kernel], others)
    assert [*map(id, model.trainable_weights)] == [*map(id, [*others, bias])]
    _private.stand_in(model, others, [kernel])
    assert [*map(id, model.trainable_weights)] == [*map(id, [kernel, bias])]
    with pytest.raises(ValueError, match="no layer"):
        _private.stand_in(model, others, [kernel])


def test_without_all_reduce(tf, keras):
    """Try _all_reduce_sum_gradients.

    Without it no operation takes all gradients.
    """
    weights, found = [keras.Variable(np.ones(2, "f")) for _ in "ab"], []
    sgd = keras.optimizers.SGD()
    sgd.build(weights)
    for block in (contextlib.nullcontext(), _private.without_all_reduce(sgd)):
        step = tf.function(lambda: sgd.apply([tf.ones(2)] * 2))
        with block:
            ops = step.get_concrete_function().graph.get_operations()
        found.append(sum(op.type == "IdentityN" for op in ops))
    assert found == [1, 0]


def test_keras_hands_on_what_says_all_in_a_sentence(keras):
    """Try _keras_call_info_injected."""

    class Refuses(keras.layers.Layer):
        def call(self, x):
            raise _private.Unwrapped("one sentence")

    with pytest.raises(_private.Unwrapped) as caught:
        Refuses()(np.ones([1, 3]))
    assert str(caught.value) == "one sentence"
