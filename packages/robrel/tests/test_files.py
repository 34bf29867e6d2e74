"""The user's files: what is written is read again, and every fault is one sentence that says where."""

import json
import math

import numpy as np
import pytest
from robrel.feedback import Demonstration, PolicyComparison, TrajectoryComparison, anchor, build
from robrel.files import (
    read_feedback,
    read_imitation,
    read_mdp,
    read_policies,
    validate,
    write_feedback,
    write_mdp,
    write_policies,
)
from robrel.mdp import MDP, occupancies, random_policies
from robrel.space import RewardSpace
from scipy import sparse

S, A, H = 3, 2, 3
STAGE = RewardSpace("stage", S, A, H)
HALF = [[0.5, 0.5]] * S


@pytest.fixture
def mdp():
    rng = np.random.default_rng(0)
    return MDP(rng.dirichlet(np.ones(S), size=(S, A)), rng.dirichlet(np.ones(S)), H)


@pytest.fixture
def policies():
    pi = random_policies(2, S, A, 1.0, np.random.default_rng(1))
    return {"first": pi[0], "second": pi[1], "staged": np.repeat(pi[0], H, axis=0)}


def lines(tmp_path, *entries):
    path = tmp_path / "feedback.jsonl"
    path.write_text("\n".join(e if isinstance(e, str) else json.dumps(e) for e in entries) + "\n")
    return path


def test_an_mdp_and_its_features_come_back_as_they_were_written(tmp_path, mdp):
    path, phi = tmp_path / "mdp.npz", np.random.default_rng(2).normal(size=(S * A, 4))
    staged = MDP(np.broadcast_to(mdp.transitions, (H, S, A, S)), mdp.initial, H)
    for model, features in ((mdp, None), (staged, phi)):
        write_mdp(path, model, features)
        found = read_mdp(path)
        assert (found.mdp.transitions == model.transitions).all()
        assert (found.mdp.initial == model.initial).all()
        assert found.mdp.horizon == H
        assert found.features is features or (found.features == features).all()
    with pytest.raises(ValueError, match="cannot hold sparse transitions"):
        write_mdp(tmp_path / "thin.npz", MDP(sparse.csr_array(mdp.transitions.reshape(-1, S)), mdp.initial, H))
    assert [file.name for file in tmp_path.iterdir()] == ["mdp.npz"]


def test_policies_come_back_as_they_were_written(tmp_path, mdp, policies):
    path = tmp_path / "policies.npz"
    write_policies(path, policies)
    with np.load(path) as file:
        assert {name: file[name].shape for name in file} == {"first": (S, A), "second": (S, A), "staged": (H, S, A)}
    found = read_policies(path, mdp)
    assert found.keys() == policies.keys()
    assert all((found[name] == policies[name]).all() for name in policies)


def test_feedback_comes_back_with_the_same_constraints(tmp_path, mdp, policies):
    d = {name: occupancies(mdp, pi) for name, pi in policies.items()}
    items = [
        TrajectoryComparison([[0, 1], [2, 0]], np.array([[1, 1]]), 0.25),
        PolicyComparison(d["first"], d["second"]),
        PolicyComparison(d["second"], d["staged"], -math.inf, 0.5),
        Demonstration(d["second"], 0.75),
        anchor(d["first"], 2.0),
    ]
    path = tmp_path / "feedback.jsonl"
    write_feedback(path, mdp, items)
    found = read_feedback(path, mdp)
    assert found.labels == [f"feedback.jsonl line {i}" for i in range(1, 6)]
    ours, theirs = build(STAGE, mdp, items), build(STAGE, mdp, found.items, labels=found.labels)
    np.testing.assert_allclose(theirs.rows, ours.rows, atol=1e-12)
    assert (theirs.lower == ours.lower).all()
    assert (theirs.upper == ours.upper).all()
    x = np.random.default_rng(3).normal(size=STAGE.dim)
    assert theirs.cuts[0].name == "feedback.jsonl line 4"
    assert theirs.cuts[0].bound == 0.75
    assert theirs.cuts[0].oracle(x)[0] == pytest.approx(ours.cuts[0].oracle(x)[0], abs=1e-12)


def test_an_occupancy_of_no_policy_is_not_written(tmp_path, mdp):
    impossible = np.zeros((H, S, A))
    impossible[:, 0, 0] = 1
    with pytest.raises(ValueError, match="cannot hold an occupancy that is no policy's"):
        write_feedback(tmp_path / "feedback.jsonl", mdp, [Demonstration(impossible)])
    assert list(tmp_path.iterdir()) == []


def test_each_line_means_what_its_fields_say(tmp_path, mdp, policies):
    walk = [[0, 1], [2, 0], [1, 1]]
    path = lines(
        tmp_path,
        {"type": "trajectory", "better": walk, "worse": [[1, 0]]},
        "",
        {"type": "policy", "better": "first", "worse": HALF, "margin": 0.5, "margin_high": 1},
        {"type": "policy", "better": "staged", "worse": "second", "margin": None, "margin_high": 0},
        {"type": "demo", "trajectories": [walk, walk, walk, [[0, 0], [2, 0], [1, 1]]], "eps": 0.5},
        {"type": "demo", "policy": "second"},
        {"type": "anchor", "policy": "first"},
    )
    items, labels = read_feedback(path, mdp, policies)
    assert labels == [f"feedback.jsonl line {i}" for i in (1, 3, 4, 5, 6, 7)]
    trajectory, policy, capped, demo, expert, fixed = items
    assert (trajectory.better, trajectory.worse, trajectory.margin) == (walk, [[1, 0]], 0)
    assert (policy.better == occupancies(mdp, policies["first"])).all()
    assert (policy.worse == occupancies(mdp, HALF)).all()
    assert (policy.margin_low, policy.margin_high) == (0.5, 1)
    assert (capped.better == occupancies(mdp, policies["first"])).all()
    assert (capped.margin_low, capped.margin_high) == (-math.inf, 0)
    assert demo.epsilon == 0.5
    assert demo.occupancy[0, 0].tolist() == [0.25, 0.75]
    assert demo.occupancy[1, 2, 0] == demo.occupancy[2, 1, 1] == 1
    assert expert.epsilon == 0
    assert (expert.occupancy == occupancies(mdp, policies["second"])).all()
    assert (fixed.margin_low, fixed.margin_high) == (1, 1)
    assert not fixed.worse.any()


def test_an_empty_file_is_no_feedback(tmp_path, mdp):
    path = tmp_path / "feedback.jsonl"
    path.write_bytes(b"")
    assert read_feedback(path, mdp) == ([], [])


FAULTS = [
    ("{", "not valid JSON: .* at column 2"),
    ("[1]", "expected a JSON object, got list"),
    ('{"type": "rank"}', "type must be one of trajectory, policy, demo, anchor, got 'rank'"),
    ('{"type": ["demo"]}', r"type must be one of .*, got \['demo'\]"),
    ('{"type": "trajectory", "better": [[0, 0]]}', "trajectory needs a field 'worse'"),
    ('{"type": "trajectory", "better": [[0, 0]], "worse": [[0, 3]]}', "worse has action 3 at step 0, expected 0 to 1"),
    ('{"type": "trajectory", "better": [[0,0],[0,0],[0,0],[0,0]], "worse": []}', "better has 4 steps, more than"),
    ('{"type": "trajectory", "better": [[0,0]], "worse": [[0,1]], "margin": NaN}', "NaN is no number that JSON allows"),
    ('{"type": "trajectory", "better": [[0,0]], "worse": [[0,1]], "margin": 1e999}', "margin must be finite, got inf"),
    ('{"type": "trajectory", "better": [[0,0]], "worse": [[0,1]], "margin": "1"}', "margin must be a number, got '1'"),
    (
        '{"type": "trajectory", "better": [[0,0]], "worse": [[0,1]], "margin": null}',
        "must be a number, got null",
    ),
    ('{"type": "trajectory", "better": [[0,0]], "worse": [[0,1]], "margn": 1}', "trajectory has no field 'margn'"),
    (
        '{"type": "policy", "better": "third", "worse": "first"}',
        "'third' is no valid policy .* first, second, staged",
    ),
    ('{"type": "policy", "better": [[1, 0]], "worse": "first"}', r"better must have shape \(3, 2\)"),
    ('{"type": "policy", "better": [[1,0],[1,1],[1,0]], "worse": "first"}', r"better\[1\] must sum to 1"),
    ('{"type": "policy", "better": [[[[1,0],[1,0],[1,0]]]], "worse": "first"}', "better must be one policy"),
    ('{"type": "policy", "better": {}, "worse": "first"}', "better must be an array of real numbers"),
    (
        '{"type": "policy", "better": "first", "worse": "second", "margin": 2, "margin_high": 1}',
        "exceed margin_high",
    ),
    ('{"type": "demo", "policy": "first", "eps": -0.5}', "eps must be at least 0, got -0.5"),
    ('{"type": "demo", "policy": "first", "trajectories": []}', "either trajectories or a policy"),
    ('{"type": "demo", "trajectories": []}', "a list of at least one trajectory"),
    ('{"type": "demo", "trajectories": [[[0,0],[0,0]]]}', r"trajectories\[0\] has 2 steps, expected the horizon 3"),
    ('{"type": "anchor", "policy": "first", "value": true}', "value must be a number, got True"),
    ("[" * 100000, "nested too deeply"),
]


@pytest.mark.parametrize(("line", "message"), FAULTS)
def test_a_faulty_line_is_named_in_one_sentence(tmp_path, mdp, policies, line, message):
    path = lines(tmp_path, {"type": "demo", "policy": "first"}, "", line)
    with pytest.raises(ValueError, match=f"feedback.jsonl line 3: .*{message}") as caught:
        read_feedback(path, mdp, policies)
    assert "\n" not in str(caught.value)


def test_text_in_another_encoding_is_refused(tmp_path, mdp):
    path = tmp_path / "feedback.jsonl"
    path.write_bytes(b'{"type": "\xff"}')
    with pytest.raises(ValueError, match="line 1: not UTF-8 text"):
        read_feedback(path, mdp)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"P": None}, "has no array P, expected P, mu0, H and optionally features"),
        ({"feature": np.zeros(1)}, "holds an array feature, expected"),
        ({"H": np.array([3, 4])}, r"H must be one whole number, got int64 of shape \(2,\)"),
        ({"H": np.array(2.5)}, "H must be one whole number, got float64"),
        ({"P": np.full((S, A, S), 0.3)}, r"P\[0, 0\] must sum to 1 .* sums to 0.9"),
        ({"mu0": np.array([0.5, 0.5])}, r"P must have shape .* S = 2 as in mu0 "),
        ({"features": np.zeros((4, 2))}, r"features must have shape \(S \* A, k\) = \(6, k\), got \(4, 2\)"),
        ({"features": np.full((6, 1), "x")}, "could not convert string"),
        ({"P": np.array([{}])}, "array P holds Python objects, which are never loaded"),
    ],
)
def test_a_faulty_mdp_file_is_named(tmp_path, mdp, change, message):
    path = tmp_path / "mdp.npz"
    arrays = {"P": mdp.transitions, "mu0": mdp.initial, "H": np.array(H), **change}
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    with pytest.raises(ValueError, match=f"mdp.npz.*{message}") as caught:
        read_mdp(path)
    assert "\n" not in str(caught.value)


class Executed:
    """Unpickling this creates a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def test_a_pickle_in_a_file_is_never_executed(tmp_path, mdp):
    trace, path = tmp_path / "executed", tmp_path / "policies.npz"
    np.savez(path, first=np.array([Executed(str(trace))], dtype=object))
    with pytest.raises(ValueError, match="array first holds Python objects"):
        read_policies(path, mdp)
    np.save(path.open("wb"), np.array([Executed(str(trace))], dtype=object))
    with pytest.raises(ValueError, match=r"policies.npz is no .npz file"):
        read_policies(path, mdp)
    assert not trace.exists()


def test_files_that_are_missing_or_damaged_are_named(tmp_path, mdp):
    for read in (read_mdp, lambda p: read_policies(p, mdp), lambda p: read_feedback(p, mdp)):
        with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
            read(tmp_path / "nowhere")
    path = tmp_path / "mdp.npz"
    write_mdp(path, mdp)
    whole = path.read_bytes()
    path.write_bytes(whole[:60] + bytes([whole[60] ^ 255]) + whole[61:])
    with pytest.raises(ValueError, match="array P is damaged"):
        read_mdp(path)


def test_validate_collects_all_faults_in_order(tmp_path, mdp, policies):
    model, named = tmp_path / "mdp.npz", tmp_path / "policies.npz"
    write_mdp(model, mdp)
    write_policies(named, {**policies, "bad": np.full((S, A), 0.4), "long": np.full((H + 1, S, A), 0.5)})
    feedback = lines(
        tmp_path,
        {"type": "demo", "policy": "first"},
        {"type": "demo", "policy": "bad"},
        {"type": "trajectory", "better": [[9, 0]], "worse": [[0, 0]]},
        {"type": "anchor", "policy": "second"},
        "?",
    )
    faults = validate(model, named, feedback)
    starts = ["policies.npz: bad[0] must sum", "policies.npz: long must have shape"]
    starts += [f"feedback.jsonl line {i}: " for i in (2, 3, 5)]
    assert len(faults) == 5
    assert all(f"{tmp_path}/{start}" in fault for start, fault in zip(starts, faults, strict=True))
    write_policies(named, {**policies, "bad": np.full((S, A), 0.5)})
    assert validate(model, named, lines(tmp_path, {"type": "demo", "policy": "bad"})) == []
    assert validate(model) == []
    assert validate(model, tmp_path / "none.npz")[0].endswith("does not exist, expected a file of arrays (.npz)")
    model.write_bytes(b"PK")
    assert validate(model, named, feedback) == [f"{model} is no .npz file of arrays"]


def test_a_folder_saved_by_imitation_is_read_without_decoding_its_infos(tmp_path, mdp):
    datasets = pytest.importorskip("datasets")
    columns = {
        "obs": [[0, 2, 1, 0], [1, 1]],
        "acts": [[1, 0, 0], [1]],
        "infos": [['{"py/reduce": [{"py/function": "builtins.open"}]}'] * 3, ["{}"]],
        "terminal": [False, True],
    }
    datasets.Dataset.from_dict(columns).save_to_disk(tmp_path / "demos")
    assert read_imitation(tmp_path / "demos", mdp) == [[(0, 1), (2, 0), (1, 0)], [(1, 1)]]
    for change, message in (
        ({"obs": [[0, 2, 1], [1, 1]]}, r"row 0: .* got \(3,\) and \(3,\)"),
        ({"acts": [[1, 0, 0], [2]]}, "row 1: trajectory has action 2 at step 0"),
    ):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        datasets.Dataset.from_dict({**columns, **change}).save_to_disk(folder)
        with pytest.raises(ValueError, match=message):
            read_imitation(folder, mdp)
    datasets.Dataset.from_dict({"obs": [[0]]}).save_to_disk(tmp_path / "half")
    with pytest.raises(ValueError, match="is no dataset with columns obs and acts"):
        read_imitation(tmp_path / "half", mdp)
    with pytest.raises(FileNotFoundError, match="is no folder"):
        read_imitation(tmp_path / "nowhere", mdp)


def test_a_file_damaged_anywhere_is_a_sentence_or_reads_as_it_was(tmp_path):
    path = tmp_path / "mdp.npz"
    mdp = MDP(np.full((2, 2, 2), 0.5), np.array([0.5, 0.5]), 3)
    np.savez_compressed(path, P=mdp.transitions, mu0=mdp.initial, H=3)
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    refusals = []
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[rng.integers(len(damaged))] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        try:
            read_mdp(path)
        except ValueError as error:
            refusals.append(str(error))
    assert len(refusals) > 100
    assert all(refusal.startswith(str(path)) for refusal in refusals)


def test_a_horizon_that_no_memory_holds_is_refused(tmp_path):
    np.savez(tmp_path / "mdp.npz", P=np.ones((1, 1, 1)), mu0=np.ones(1), H=10**9)
    with pytest.raises(ValueError, match="H must be at most 1000000, got 1000000000"):
        read_mdp(tmp_path / "mdp.npz")
