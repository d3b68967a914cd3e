"""Real graphs in real threads; weights bit for bit; votes against a count by hand."""

from __future__ import annotations

import _thread
import collections
import os
import re
import signal
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mgpu_helpers import ensemble
from mgpu_helpers.lessons import digits, networks

few = settings(max_examples=60, deadline=None)
NETWORK = networks.Network(
    "small",
    (
        networks.Conv("conv1", 4, 3, activation="relu"),
        networks.Pool(),
        networks.Pool(),
        networks.Dense("output", 10),
    ),
)
ONE = iter([(1,)] * 9)
BATCHES = list(digits.batches(*digits.load(120), 20))


@pytest.fixture(scope="session")
def tf(plan):
    import tensorflow

    return tensorflow


def build(tf, plan, place, *, network=NETWORK, final=True):
    """Build a graph as Jang's, with Adam, and open its session: place 0 is "g1" on device 0."""
    v1, name = tf.compat.v1, f"g{place + 1}"
    with tf.Graph().as_default() as graph:
        with tf.device(plan.devices[place % len(plan)]), tf.name_scope(name):
            weights = networks.classic(network, seed=place)
            images = v1.placeholder(tf.float32, [None, 28, 28, 1], name="input")
            labels = v1.placeholder(tf.int64, [None], name="label")
            scale = v1.placeholder_with_default(1.0, [], name="scale")
            scores = networks.logits(network, weights, images) * scale
            loss = tf.identity(networks.loss(labels, scores), name="cross_entropy")
            tf.nn.softmax(scores, name="probabilities")
            v1.train.AdamOptimizer(0.01).minimize(loss, name="train_step")
        session = v1.Session(config=plan.session_config(devices=1))
        session.run(v1.global_variables_initializer())
    if final:
        graph.finalize()
    return session


@pytest.fixture
def make(tf, plan):
    """Make members "g1", "g2" and so on."""
    opened = []

    def made(count, **kwargs):
        sessions = [build(tf, plan, place, **kwargs) for place in range(count)]
        opened.extend(sessions)
        return [ensemble.from_session(s, f"g{i}") for i, s in enumerate(sessions, 1)]

    yield made
    for session in opened:
        session.close()


@pytest.fixture(autouse=True)
def no_thread_stays():
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


def weights(member):
    return {n: v.tobytes() for n, v in member.session.run(dict(member.variables)).items()}


def plain(name, step=lambda *batch: 0.0, predict=None):
    return ensemble.from_functions(name, step, predict, [])


# Training


def test_at_once_in_turn_and_by_hand_give_the_same_weights(tf, plan, make):
    together, in_turn, by_hand = make(3), make(3), make(3)
    run = ensemble.train(together, BATCHES)
    other = ensemble.train(in_turn, iter(BATCHES), at_once=False)
    for i, member in enumerate(by_hand, 1):
        graph, losses = member.session.graph, []
        for images, labels in BATCHES:
            fed = {f"g{i}/input:0": images, f"g{i}/label:0": labels}
            op = graph.get_operation_by_name(f"g{i}/train_step")
            losses.append(float(member.session.run([f"g{i}/cross_entropy:0", op], fed)[0]))
        assert run.losses[f"g{i}"] == other.losses[f"g{i}"] == losses
        assert len(set(losses)) == len(BATCHES)
    for a, b, c in zip(together, in_turn, by_hand, strict=True):
        assert weights(a) == weights(b) == weights(c)
    ends = [run.spans[name][-1][1] for name in run.spans]
    assert 0 < max(ends) <= run.wall
    assert repr(run).startswith(f"3 members in {run.wall:.2f} s\ng1      6 steps  loss ")
    for first, second in [("g1", "g2"), ("g2", "g3")]:
        assert other.spans[first][-1][1] <= other.spans[second][0][0]


def test_steps_overlap_between_members_and_not_within_one():
    barrier = threading.Barrier(3, timeout=20)
    members = [plain(name, lambda x: barrier.wait() and x) for name in "abc"]
    run = ensemble.train(members, [(i,) for i in range(4)])
    for spans in run.spans.values():
        flat = [time for span in spans for time in span]
        assert len(flat) == 8 and flat == sorted(flat)
    for step in range(4):
        spans = [run.spans[name][step] for name in "abc"]
        assert max(start for start, _ in spans) <= min(end for _, end in spans)


def test_members_see_the_same_batches_or_their_own():
    seen = collections.defaultdict(list)

    def members():
        seen.clear()
        return [plain(name, lambda x, n=name: seen[n].append(x) or x / 2) for name in "abc"]

    run = ensemble.train(members(), ((i,) for i in range(5)))
    assert dict(seen) == {name: [0, 1, 2, 3, 4] for name in "abc"}
    assert run.losses == {name: [0.0, 0.5, 1.0, 1.5, 2.0] for name in "abc"}
    ensemble.train(members(), lambda place: ((place * 10 + i,) for i in range(place + 1)))
    assert dict(seen) == {"a": [0], "b": [10, 11], "c": [20, 21, 22]}


def test_a_failed_step_stops_the_others_whole(make, tmp_path):
    members, third = make(3), threading.Barrier(3, timeout=20)
    own, counts = members[1].step, collections.Counter()

    def counting(member):
        def step(*batch):
            counts[member.name] += 1
            if counts[member.name] == 3:
                third.wait()
                time.sleep(0.5)  # g2 fails while the others are in step 3
            return member.step(*batch)

        return ensemble.Member(member.name, step, member.predict, member.variables, member.session)

    def failing(images, labels):
        counts["g2"] += 1
        if counts["g2"] < 3:
            return own(images, labels)
        try:
            return own(images, np.full_like(labels, 99))
        finally:
            third.wait()

    broken = ensemble.Member(
        "g2", failing, members[1].predict, members[1].variables, members[1].session
    )
    with pytest.raises(ensemble.MemberError, match="g2 .*step 3.*a label value of 99") as error:
        ensemble.train([counting(members[0]), broken, counting(members[2])], BATCHES)
    assert "\n" not in str(error.value)  # TensorFlow's own text has many lines
    assert (error.value.name, error.value.step) == ("g2", 3)
    assert type(error.value.__cause__).__name__ == "InvalidArgumentError"
    run = error.value.run
    assert {n: len(losses) for n, losses in run.losses.items()} == {"g1": 3, "g2": 2, "g3": 3}
    assert {n: len(spans) for n, spans in run.spans.items()} == {"g1": 3, "g2": 2, "g3": 3}
    fresh = make(1)
    ensemble.train(fresh, BATCHES[:3])
    assert weights(fresh[0]) == weights(members[0])
    ensemble.save(members, tmp_path)


def test_a_second_failure_is_told_and_later_members_in_turn_do_not_start():
    barrier = threading.Barrier(2, timeout=20)

    def fail(x):
        barrier.wait()
        raise AssertionError

    with pytest.raises(ensemble.MemberError, match="step 1 .*AssertionError") as error:
        ensemble.train([plain("a", fail), plain("b", fail)], [(0,)])
    assert f"{'b' if error.value.name == 'a' else 'a'} failed too" in str(error.value)
    ran = []
    members = [plain("a", lambda x: 1 / x), plain("b", ran.append)]
    with pytest.raises(ensemble.MemberError, match="division by zero"):
        ensemble.train(members, [(0,)], at_once=False)
    assert not ran


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize(
    "interrupt", [_thread.interrupt_main, lambda: os.kill(os.getpid(), signal.SIGINT)]
)
def test_an_interrupt_ends_the_steps_and_comes_back(interrupt, times, at_once):
    done = collections.Counter()

    def step(name):
        done[f"{name} began"] += 1
        if name == "a" and done["a began"] == 3:  # the main thread waits by now
            for _ in range(times):
                interrupt()
                time.sleep(0.2)
        time.sleep(0.1)
        done[f"{name} ended"] += 1
        return 0.0

    members = [plain(name, lambda x, n=name: step(n)) for name in "ab"]
    with pytest.raises(KeyboardInterrupt):
        ensemble.train(members, [(i,) for i in range(50)], at_once=at_once)
    assert 3 <= done["a began"] == done["a ended"] < 50
    assert done["b began"] == done["b ended"]


@pytest.mark.parametrize(
    "names, batches, said",
    [
        ("", [(1,)], "there are no members"),
        ("aba", [(1,)], "2 members have the name 'a'"),
        ("ab", lambda place: [(1,)] * (1 - place), "b got no batches"),
        ("ab", lambda place: None, "a got no batches"),
        ("ab", lambda place, one=ONE: one, "one iterator"),
        ("ab", (np.zeros(3), np.zeros(3)), "a got a batch that is one ndarray"),
    ],
)
def test_train_says_what_is_wrong_before_any_step(names, batches, said):
    ran = []
    with pytest.raises((ValueError, TypeError), match=said):
        ensemble.train([plain(name, ran.append) for name in names], batches)
    assert not ran


# Names


def test_names_that_do_not_exist_name_near_ones(tf, plan, make):
    (member,) = make(1)
    session = member.session
    assert ensemble.named(session.graph, "g1/input:0").name == "g1/input:0"
    assert ensemble.named(session.graph, "g1/train_step").type == "NoOp"
    with pytest.raises(KeyError) as error:
        ensemble.named(session.graph, "g1/inputs:0")
    near = re.findall("'(.+?)'", error.value.args[0])
    assert near[:2] == ["g1/inputs:0", "g1/input:0"] and len(near) <= 4
    assert all(":" in name for name in near)
    with pytest.raises(KeyError, match="operation 'g1/trainstep'.*'g1/train_step'"):
        ensemble.from_session(session, "g1", train="trainstep")
    with pytest.raises(KeyError, match="'g1/keep:0'"):
        ensemble.from_session(session, "g1/", feed={"keep": 0.8})
    with pytest.raises(KeyError, match="'zzzz/input:0'"):
        ensemble.from_session(session, "zzzz")


def test_what_training_feeds_is_not_fed_in_prediction(make):
    (member,) = make(1)
    same = ensemble.from_session(member.session, "g1/", feed={"scale": 0.0})
    images, labels = BATCHES[0]
    before = same.predict(images)
    assert same.name == "g1" and same.step(images, labels) == pytest.approx(np.log(10))
    np.testing.assert_array_equal(same.predict(images), before)  # scale 0: no gradient
    assert np.ptp(before) > 0.01
    with pytest.raises(ensemble.MemberError, match="1 part for 2 inputs"):
        ensemble.train([same], [(images,)])


def test_a_placeholder_that_is_not_fed_is_named(tf, plan):
    v1 = tf.compat.v1
    with tf.Graph().as_default(), tf.name_scope("g"):
        x, keep = v1.placeholder(tf.float32, name="x"), v1.placeholder(tf.float32, name="keep")
        with tf.control_dependencies([x * keep]):
            tf.identity(x, name="out")
        tf.identity(x * 2, name="free")
        tf.ones([3], name="three")
        with v1.Session() as session:
            kwargs = {"inputs": ["x"], "loss": "out", "train": "out"}
            with pytest.raises(ValueError, match="training needs g/keep:0"):
                ensemble.from_session(session, "g", predict="free", **kwargs)
            with pytest.raises(ValueError, match="prediction needs g/keep:0"):
                ensemble.from_session(session, "g", predict="out", feed={"keep": 1.0}, **kwargs)
            ensemble.from_session(session, "g", predict="free", feed={"keep": 1.0}, **kwargs)
            with pytest.raises(ValueError, match=r"g/three:0 has shape \(3,\)"):
                kwargs["loss"] = "three"
                ensemble.from_session(session, "g", predict="free", feed={"keep": 1.0}, **kwargs)


# Prediction and votes


def test_predictions_come_in_pieces_and_in_order(make):
    members, images = make(2), BATCHES[0][0]
    got = ensemble.predictions(members, images, batch=7)
    assert list(got) == ["g1", "g2"]
    for i, member in enumerate(members, 1):
        whole = member.session.run(f"g{i}/probabilities:0", {f"g{i}/input:0": images})
        np.testing.assert_allclose(got[f"g{i}"], whole, rtol=1e-5)
    sizes = []
    one = plain("a", predict=lambda x: sizes.append(len(x)) or x)
    np.testing.assert_array_equal(ensemble.predictions([one], images, batch=8)["a"], images)
    assert sizes == [8, 8, 4]
    with pytest.raises(ensemble.MemberError, match="a failed in piece 1 .*NoneType"):
        ensemble.predictions([plain("a")], images)
    with pytest.raises(ValueError, match="0 images"):
        ensemble.predictions([one], images[:0])
    with pytest.raises(ValueError, match="batch=0"):
        ensemble.predictions([one], images, batch=0)


quarters = st.integers(0, 4).map(lambda x: x / 4)  # sums are exact, and ties are common


@few
@given(st.data(), st.integers(1, 5), st.integers(0, 6), st.integers(1, 4))
def test_vote_and_mean_are_those_of_a_count(draw, count, n, classes):
    row = st.lists(quarters, min_size=classes, max_size=classes)
    table = draw.draw(
        st.lists(st.lists(row, min_size=n, max_size=n), min_size=count, max_size=count)
    )
    arrays = [np.array(rows, np.float32).reshape(n, classes) for rows in table]
    votes, means = [], []
    for i in range(n):
        rows = [member[i] for member in table]
        sums = [sum(column) for column in zip(*rows, strict=True)]
        ballots = collections.Counter(row.index(max(row)) for row in rows)
        votes.append(max(range(classes), key=lambda k: (ballots[k], sums[k], -k)))
        means.append(sums.index(max(sums)))
    for given_as in (arrays, {f"m{i}": array for i, array in enumerate(arrays)}):
        assert ensemble.vote(given_as).tolist() == votes
        assert ensemble.mean(given_as).tolist() == means


def test_a_tie_goes_to_the_sum_and_then_to_the_smallest_label():
    votes = [[[0.0, 0.6, 0.4]], [[0.1, 0.0, 0.9]]]
    assert ensemble.vote(votes).tolist() == [2]
    assert ensemble.vote([[[0, 0.5, 0.5]], [[0, 0.25, 0.75]], [[0, 0.75, 0.25]]]).tolist() == [1]
    two_of_three = [[[0.51, 0.49]], [[0.51, 0.49]], [[0.0, 1.0]]]
    assert ensemble.vote(two_of_three).tolist() == [0]
    assert ensemble.mean(two_of_three).tolist() == [1]


@pytest.mark.parametrize(
    "given_as, said",
    [
        ({}, "there are no predictions"),
        ({"g1": np.ones((3, 10)), "g2": np.ones((3, 12))}, "g1 has 10 labels and g2 has 12"),
        ([np.ones((1, 10)), np.ones((3, 10))], "member 0 has 1 row and member 1 has 3 rows"),
        ({"g1": [[0.5, 0.5]], "g2": [[np.nan, 1]]}, "g2 .* not finite"),
        (np.ones((3, 10)), r"member 0 .* \(10,\)"),
        ([np.ones((3, 0))], r"member 0 .* \(3, 0\)"),
    ],
)
def test_votes_say_what_is_wrong(given_as, said):
    for count in (ensemble.vote, ensemble.mean):
        with pytest.raises(ValueError, match=said):
            count(given_as)


# Weights on disk


def test_a_resumed_training_is_the_one_not_interrupted(make, tmp_path):
    whole, first, second = make(2), make(2), make(2)
    run = ensemble.train(whole, BATCHES)
    ensemble.train(first, BATCHES[:2])
    files = ensemble.save(first, tmp_path / "new" / "folder")
    assert [file.name for file in files] == ["g1.npz", "g2.npz"]
    assert sorted(files) == sorted((tmp_path / "new" / "folder").iterdir())
    ensemble.resume(second, tmp_path / "new" / "folder")  # their graphs are finalized
    rest = ensemble.train(second, BATCHES[2:])
    for a, b in zip(whole, second, strict=True):
        assert rest.losses[a.name] == run.losses[a.name][2:]
        assert weights(a) == weights(b) and len(weights(a)) == 4 * 3 + 2


def test_members_from_functions_are_saved_and_resumed_too(tf, plan, tmp_path):
    def member(start):
        made = [tf.Variable(start), tf.Variable([start, 2.0]), tf.Variable(7, name="count")]

        @tf.function
        def step(x):
            with tf.device(plan.devices[1]):
                made[0].assign_add(x)
                made[2].assign_add(1)
                return made[0] * 1.0

        return ensemble.from_functions("a/b", step, lambda x: x, made), made

    one, made = member(1.0)
    assert ensemble.train([one], [(2.0,), (3.0,)]).losses == {"a/b": [3.0, 6.0]}
    assert list(one.variables) == ["Variable:0", "Variable:0 (2)", "count:0"]
    (file,) = ensemble.save([one], tmp_path)
    assert file.parent == tmp_path
    other, fresh = member(5.0)
    ensemble.resume([other], tmp_path)
    assert [v.numpy().tolist() for v in fresh] == [6.0, [1.0, 2.0], 9]


# Keras


def dense_model(seed, metrics=("accuracy",)):
    """Build two layers of one shape and dropout, as a cell does that is run again."""
    import keras

    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(4, activation="relu") for _ in range(2)]
    model = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dropout(0.5),
                              keras.layers.BatchNormalization(), keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=list(metrics))
    return model


def some_batches(count):
    random = np.random.default_rng(0)
    return [(random.random((8, 4), "float32"), random.integers(0, 3, 8)) for _ in range(count)]


def test_keras_members_train_on_their_devices_as_alone(tf, plan):
    batches = some_batches(3)
    alone, losses = dense_model(1), []
    for batch in batches:
        alone.reset_metrics()  # before Keras 3.15, the mean since the last reset comes
        losses.append(float(alone.train_on_batch(*batch)[0]))
    members = []
    for place in (0, 1):
        with tf.device(plan.devices[place]):
            members.append(ensemble.from_keras(f"m{place}", dense_model(place)))
    run = ensemble.train(members, batches)
    assert run.losses["m1"] == losses and run.losses["m0"] != losses
    made = list(members[1].variables.values())
    assert all(plan.devices[1][1:] in v.value.device for v in made if "momentum" in v.path)
    probabilities = ensemble.predictions(members, batches[0][0])["m1"]
    np.testing.assert_array_equal(probabilities, alone.predict_on_batch(batches[0][0]))


def test_a_member_of_keras_says_what_is_missing(plan):
    import keras

    with pytest.raises(ValueError, match="unbuilt.*weights"):
        ensemble.from_keras("a", keras.Sequential([keras.layers.Dense(2)], name="unbuilt"))
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)], name="plain")
    with pytest.raises(ValueError, match="plain.*compile"):
        ensemble.from_keras("a", model)
    with pytest.raises(ValueError, match="'/GPU:7'.*/CPU:0, /CPU:1, /CPU:2"):
        ensemble.from_keras("a", dense_model(0), "/GPU:7")


@pytest.mark.parametrize("given_as", [
    lambda x: [x, 9.0], lambda x: {"accuracy": 9.0, "loss": x}, lambda x: (np.float32(x),),
])  # fmt: skip
def test_the_loss_of_a_step_with_metrics_is_the_first_or_named(given_as):
    assert ensemble.train([plain("a", given_as)], [(0.5,)]).losses == {"a": [0.5]}


def test_a_model_that_is_built_again_goes_on_bit_for_bit(plan, tmp_path):
    batches = some_batches(4)
    whole = ensemble.from_keras("m", dense_model(3))
    losses = ensemble.train([whole], batches).losses["m"]
    first = ensemble.from_keras("m", dense_model(3))
    ensemble.train([first], batches[:2])
    ensemble.save([first], tmp_path)
    again = ensemble.from_keras("m", dense_model(4))
    mine = [{path for path in m.variables if "adam" not in path} for m in (again, first)]
    assert mine[0] and not mine[0] & mine[1]  # optimizers are numbered since Keras 3.15
    ensemble.resume([again], tmp_path)
    assert ensemble.train([again], batches[2:]).losses["m"] == losses[2:]
    for a, b in zip(again.variables.values(), whole.variables.values(), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


OLD = "dense_1/kernel dense_1/bias dense_2/kernel adam/dense_1_kernel_m adam/rate_2"


@pytest.mark.parametrize("new, same", [
    ("dense_4/kernel dense_4/bias dense_5/kernel adam_7/dense_4_kernel_m adam_7/rate_2", True),
    ("dense/kernel dense/bias dense_1/kernel adam/dense_kernel_m adam/rate_2", True),
    # another order, a gap, slots of another layer, two layers in one, another name
    ("dense_5/kernel dense_5/bias dense_4/kernel adam/dense_5_kernel_m adam/rate_2", False),
    ("dense_4/kernel dense_4/bias dense_6/kernel adam/dense_4_kernel_m adam/rate_2", False),
    ("dense_4/kernel dense_4/bias dense_5/kernel adam/dense_5_kernel_m adam/rate_2", False),
    ("dense_4/kernel dense_5/bias dense_5/kernel adam/dense_4_kernel_m adam/rate_2", False),
    ("dense_4/kernel dense_4/scale dense_5/kernel adam/dense_4_kernel_m adam/rate_2", False),
])  # fmt: skip
def test_only_what_was_counted_anew_is_taken_for_the_same(tf, plan, tmp_path, new, same):
    def member(names, values):
        made = {name: tf.Variable(value) for name, value in zip(names.split(), values, strict=True)}
        return ensemble.Member("m", None, None, made)

    ensemble.save([member(OLD, np.arange(5.0))], tmp_path)
    other = member(new, -np.ones(5))
    if same:
        ensemble.resume([other], tmp_path)
    else:
        with pytest.raises(ValueError, match="m.npz does not fit m"):
            ensemble.resume([other], tmp_path)
    got = [float(variable) for variable in other.variables.values()]
    assert got == ([0, 1, 2, 3, 4] if same else [-1] * 5)


def test_two_variables_that_start_from_one_tensor_resume_apart(tf, plan, tmp_path):
    v1 = tf.compat.v1
    for resource in (False, True):
        with tf.Graph().as_default(), tf.name_scope("g"):
            v1.placeholder(tf.float32, name="x")
            start = tf.zeros([2], name="start")
            made = [v1.Variable(start, use_resource=resource) for _ in range(2)]
            moves = tf.group(made[0].assign([1, 2]), made[1].assign([3, 4]), name="move")
            tf.zeros([], name="loss")
            with v1.Session() as session:
                session.run(v1.global_variables_initializer())
                member = ensemble.from_session(
                    session, "g", inputs=["x"], train="move", loss="loss", predict="start"
                )
                session.run(moves)
                ensemble.save([member], tmp_path)
                session.run(v1.global_variables_initializer())
                ensemble.resume([member], tmp_path)
                assert [v.tolist() for v in session.run(made)] == [[1, 2], [3, 4]]


def test_nothing_is_assigned_unless_everything_fits(make, tmp_path):
    wider = networks.Network(
        "wider", (*NETWORK.layers[:-1], networks.Dense("fc", 3), NETWORK.layers[-1])
    )
    members, others = make(2), make(2, network=wider)
    ensemble.save(members, tmp_path)
    ensemble.train(members, BATCHES[:1])
    before = [weights(member) for member in members]
    second = tmp_path / "g2.npz"
    sound, arrays = second.read_bytes(), dict(np.load(second))

    def fails(said, kind=ValueError):
        with pytest.raises(kind, match=said):
            ensemble.resume(members, tmp_path)
        assert [weights(member) for member in members] == before

    spoilt = bytearray(sound)
    spoilt[len(sound) // 2] ^= 1
    for content in (sound[:-20], b"", bytes(spoilt), b"PK\3\4 no"):
        second.write_bytes(content)
        fails("g2.npz is not a whole file")
    np.savez(second, **(arrays | {"output/bias:0": np.zeros(11, np.float32)}))
    fails(r"output/bias:0 as float32 \(11,\) instead of float32 \(10,\)")
    np.savez(second, **(arrays | {"output/bias:0": np.zeros(10)}))
    fails(r"output/bias:0 as float64")
    del arrays["output/bias:0"]
    np.savez(second, **arrays, more=np.zeros(1))
    fails("g2: it lacks output/bias:0 and has also more")
    second.unlink()
    fails("g2 has no g2.npz", FileNotFoundError)
    with pytest.raises(ValueError, match="g1: it lacks fc/bias"):
        ensemble.resume(others, tmp_path)


def test_a_save_that_breaks_leaves_the_old_file_whole(monkeypatch, make, tmp_path):
    members = make(1)
    (file,) = ensemble.save(members, tmp_path)
    old = file.read_bytes()
    ensemble.train(members, BATCHES[:1])

    class Broken:
        dtype, shape = np.dtype(float), ()

        def __array__(self, *args, **kwargs):
            return np.array(lambda: 0)  # an object that no file takes

        name = "broken"

    broken = ensemble.from_functions("g1", None, None, [Broken()])
    with pytest.raises(Exception, match="pickle"):
        ensemble.save([broken], tmp_path)
    assert list(tmp_path.iterdir()) == [file] and file.read_bytes() == old


def test_a_model_that_no_member_can_be_is_refused(plan, tf):
    with pytest.raises(TypeError, match="not a Keras model"):
        ensemble.from_keras("a", lambda x: x)
    with tf.distribute.MirroredStrategy(plan.devices).scope():
        twice = dense_model(0)
    with pytest.raises(ValueError, match="2 copies"):
        ensemble.from_keras("a", twice)


def test_xla_wants_all_variables_where_the_step_runs(plan, tf):
    """As Keras compiles it by itself where there is a GPU; elsewhere each variable may be away."""
    import keras

    batch = np.ones([4, 3], "float32"), np.zeros([4, 2], "float32")
    here, other = plan.devices[1], plan.devices[0]

    def compiled(built_on, compiled_on, jit_compile=True):
        with tf.device(built_on):
            model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2)])
        with tf.device(compiled_on):
            model.compile("adam", "mse", metrics=["mae"], jit_compile=jit_compile)
        return model

    assert np.isfinite(ensemble.from_keras("a", compiled(here, here)).step(*batch)).all()
    late = compiled(here, other)
    with pytest.raises(tf.errors.InvalidArgumentError, match="located in device"):
        with tf.device(here):
            late.train_on_batch(*batch)
    with pytest.raises(ValueError, match="XLA .*/CPU:2, and adam.* is on /CPU:1"):
        ensemble.from_keras("a", late, here)
    late.optimizer = compiled(here, here).optimizer  # the metrics are still away
    with pytest.raises(ValueError, match="XLA .*/CPU:2, and loss/total is on /CPU:1"):
        ensemble.from_keras("a", late, here)
    with pytest.raises(ValueError, match="XLA .*/CPU:2, and .*kernel is on /CPU:1"):
        ensemble.from_keras("a", compiled(other, here), here)
    member = ensemble.from_keras("a", compiled(here, other, jit_compile=False), here)
    assert np.isfinite(member.step(*batch)).all()


def test_members_with_several_inputs_predict_and_several_outputs_are_refused():
    images = {"left": np.arange(5.0), "right": np.ones(5)}

    def adds(given):
        return np.stack([given["left"], given["right"]], 1)

    member = ensemble.from_functions("adds", None, adds, [])
    rows = ensemble.predictions([member], images, batch=2)["adds"]
    np.testing.assert_array_equal(rows, adds(images))
    member = ensemble.from_functions("two", None, lambda given: given, [])
    with pytest.raises(ensemble.MemberError, match="predicts left, right"):
        ensemble.predictions([member], images)
