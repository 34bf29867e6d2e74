"""The verbs as a user types them: small files, numbers derived by hand, one sentence for every fault."""

import json
import math
import re

import numpy as np
import pytest
from robrel.cli import main
from robrel.environments import from_gym
from robrel.exact import interval
from robrel.feedback import build
from robrel.files import read_feedback, read_mdp, read_policies, write_mdp, write_policies
from robrel.mdp import MDP, occupancies, plan, returns
from robrel.space import RewardSpace

ACTIONS = {"a1": [[1.0, 0, 0]], "a2": [[0, 1.0, 0]], "a3": [[0, 0, 1.0]]}
CHAIN = [{"type": "policy", "better": "a1", "worse": "a3"}, {"type": "policy", "better": "a3", "worse": "a2"}]
UNIT = ["--low", "0", "--high", "1"]


def write_case(folder, feedback, mdp=None, policies=ACTIONS, features=None):
    """Write the files of one state with three actions and one stage, or of another MDP."""
    mdp = mdp or MDP(np.ones((1, 3, 1)), np.ones(1), 1)
    write_mdp(folder / "mdp.npz", mdp, features)
    write_policies(folder / "policies.npz", {name: np.array(pi, dtype=float) for name, pi in policies.items()})
    (folder / "feedback.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in feedback))
    return [str(folder / name) for name in ("mdp.npz", "policies.npz", "feedback.jsonl")]


def assessed(folder, files, *options, first="a1", second="a2"):
    out = folder / "out"
    assert main(["assess", *files, "--first", first, "--second", second, "--out", str(out), *options]) == 0
    return json.loads((out / "assessment.json").read_text())


def numbers(found, *names):
    return [found[name] for name in names or ("m", "M", "answer", "half_width")]


def refusal(capsys, *arguments):
    """Run what must fail with exit code 2, and return its one sentence."""
    assert main([str(argument) for argument in arguments]) == 2
    sentence, hint = capsys.readouterr().err.strip().splitlines()
    assert hint.startswith("(PAPERS_TRACEBACK=1")
    return sentence


@pytest.mark.parametrize(
    ("feedback", "expected"),
    [
        ([], [-1, 1, 0, 1]),
        (CHAIN, [0, 1, 0.5, 0.5]),
        ([{"type": "demo", "policy": "a1", "eps": 0}], [0, 1, 0.5, 0.5]),
    ],
)
def test_three_actions_give_the_intervals_that_can_be_worked_out(tmp_path, feedback, expected):
    found = assessed(tmp_path, write_case(tmp_path, feedback), *UNIT)
    assert numbers(found) == pytest.approx(expected, abs=1e-6)
    assert found["certificate"] == ("weak" if feedback else "none")
    assert found["decision"] == ("first" if feedback else "undetermined")
    assert found["zero_feasible"] is True
    with np.load(tmp_path / "out" / "robust_reward.npz") as reward:
        x, r = reward["x"], reward["r"]
    assert r.shape == (1, 1, 3)
    assert (r.ravel() == x).all()
    assert x[0] - x[1] == pytest.approx(found["answer"], abs=1e-9)
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [
        "assessment.json",
        "interval.png",
        "robust_reward.npz",
    ]


def test_a_margin_makes_the_certificate_strict_and_both_lines_matter(tmp_path, capsys):
    """a1 ≽ a3 ≽ a2 + 1/4 with rewards in [0, 1]: the advantage of a1 over a2 lies in [1/4, 1]."""
    files = write_case(tmp_path, [CHAIN[0], {**CHAIN[1], "margin": 0.25}])
    found = assessed(tmp_path, files, *UNIT)
    assert numbers(found) == pytest.approx([0.25, 1, 0.625, 0.375], abs=1e-6)
    assert (found["decision"], found["certificate"], found["zero_feasible"]) == ("first", "strict", False)
    assert found["active"] == ["feedback.jsonl line 1", "feedback.jsonl line 2"]
    assert found["duals_min"] == pytest.approx({"feedback.jsonl line 1": 1.0, "feedback.jsonl line 2": 1.0})
    assert found["duals_max"] == pytest.approx({"feedback.jsonl line 1": 0.0, "feedback.jsonl line 2": 0.0})
    printed = capsys.readouterr().err
    assert "a1 is better" in printed
    assert "strict" in printed
    assert "│ feedback.jsonl line 1, 2 " in printed
    # A ball of radius ρ touches x1 <= 1, x2 >= 0 and both lines: 1 - 2 ρ = 1/4 + 2 √2 ρ.
    rho = 0.75 / (2 + 2 * 2**0.5)
    centre = {"answer": pytest.approx(1 - 2 * rho), "worst_case_error": pytest.approx(1 - 2 * rho - 0.25)}
    assert found["others"] == {"Chebyshev centre": centre}


def test_swapping_the_policies_negates_the_interval_and_equal_ones_differ_by_exactly_nothing(tmp_path, capsys):
    files = write_case(tmp_path, CHAIN)
    swapped = assessed(tmp_path, files, *UNIT, first="a2", second="a1")
    assert numbers(swapped) == pytest.approx([-1, 0, -0.5, 0.5], abs=1e-6)
    assert swapped["decision"] == "second"
    assert "r = 0 agrees with all of this" in capsys.readouterr().err
    assert numbers(assessed(tmp_path, files, first="a1", second="a1")) == [0, 0, 0, 0]
    assert "equally good" in capsys.readouterr().err


def test_each_space_of_rewards_and_each_solver_has_its_own_interval(tmp_path):
    """Two stages, one state: a0 then a1 against a1 then a0, and a0 twice against a1 twice."""
    there = {"up": [[[1, 0]], [[0, 1]]], "down": [[[0, 1]], [[1, 0]]], "zeros": [[1, 0]], "ones": [[0, 1]]}
    mdp = MDP(np.ones((1, 2, 1)), np.ones(1), 2)
    files = write_case(tmp_path, [], mdp, there, features=np.array([[1.0], [0.5]]))

    def ends(*options, pair=("zeros", "ones")):
        return numbers(assessed(tmp_path, files, *options, first=pair[0], second=pair[1]), "m", "M")

    assert ends() == pytest.approx([-1, 1])  # 2 θ - 2 θ / 2
    assert ends("--space", "stationary") == pytest.approx([-4, 4])
    assert ends("--space", "stationary", pair=("up", "down")) == [0, 0]
    assert ends("--space", "stage", pair=("up", "down")) == pytest.approx([-4, 4])
    # The ball touches the corners of neither axis: 2 ‖(1, -1)‖₂.
    assert ends("--space", "stationary", "--radius", "1") == pytest.approx([-(8**0.5), 8**0.5], abs=1e-6)
    by_pd = assessed(tmp_path, files, "--space", "stage", "--solver", "pd", first="up", second="down")
    assert by_pd["solver"] == "pd"
    assert numbers(by_pd, "m", "M") == pytest.approx([-4, 4], abs=2e-2)


def test_an_anchor_sets_the_scale(tmp_path):
    """r(a1) = 1, a1 ≽ a3 ≽ a2 and r >= -1 leave r(a1) - r(a2) in [0, 2], where the anchor alone holds M."""
    found = assessed(tmp_path, write_case(tmp_path, CHAIN), "--anchor", "a1", "--high", "2")
    assert numbers(found, "m", "M") == pytest.approx([0, 2], abs=1e-6)
    assert found["zero_feasible"] is False
    lines = {"feedback.jsonl line 1": 0.0, "feedback.jsonl line 2": 0.0}
    assert found["duals_max"] == pytest.approx({**lines, "the anchor a1": 1.0})


def test_estimated_policies_loosen_the_feedback_and_widen_the_interval_by_beta(tmp_path):
    """a1 ≽ a3 ≽ a2 up to β each gives [-2 β, 1], and [-3 β, 1 + β] after widening."""
    files = write_case(tmp_path, CHAIN)
    beta = math.sqrt(2 * 3 / 10_000) + math.sqrt(2 * math.log(2 * (2 + 2) / 0.05) / 10_000)
    for use, expected in (("none", [0, 1]), ("relax", [-2 * beta, 1]), ("conservative", [-3 * beta, 1 + beta])):
        found = assessed(tmp_path, files, *UNIT, "--episodes", "10000", "--slack", use)
        assert found["slack"] == {"use": use, "beta": pytest.approx(beta), "episodes": 10_000, "delta": 0.05}
        assert numbers(found, "m", "M") == pytest.approx(expected, abs=1e-6)
        assert found["half_width"] == pytest.approx((expected[1] - expected[0]) / 2, abs=1e-6)
        assert found["certificate"] == ("weak" if use == "none" else "none")
    # Rewards up to 3, or within a ball of radius 2, or of features with at most 1/2 + 1/2.
    for options, bound in ((["--high", "3"], 3), (["--high", "3", "--radius", "2"], 2)):
        found = assessed(tmp_path, files, "--episodes", "10000", *options)
        assert found["slack"]["beta"] == pytest.approx(bound * beta)
    files = write_case(tmp_path, CHAIN, features=np.array([[0.5, -0.5], [0, 0.2], [0.1, 0.1]]))
    found = assessed(tmp_path, files, "--episodes", "10000", "--high", "0.5")
    assert found["slack"]["beta"] == pytest.approx(beta)
    found = assessed(tmp_path, files, "--episodes", "10000", "--radius", "1")
    assert found["slack"]["beta"] == pytest.approx(0.5**0.5 * beta)


def test_conflicting_lines_stop_the_command_or_give_way_by_half_their_contradiction(tmp_path, capsys):
    """a1 - a2 >= 1/2 and a2 - a1 >= 1/2 both hold once each gives way by 1/2; the third line is not to blame."""
    margin = [{"type": "policy", "better": a, "worse": b, "margin": 0.5} for a, b in (("a1", "a2"), ("a2", "a1"))]
    files = write_case(tmp_path, [margin[0], CHAIN[0], margin[1]])
    sentence = refusal(capsys, "assess", *files, "--first=a1", "--second=a2", "--out", tmp_path / "out")
    assert "τ = 0.5 " in sentence
    assert "agrees with feedback.jsonl line 1, 3 unless" in sentence
    assert not (tmp_path / "out").exists()
    found = assessed(tmp_path, files, "--on_conflict", "relax")
    assert "WARNING the feedback conflicts" in capsys.readouterr().err
    assert found["conflict"]["tau"] == pytest.approx(0.5, abs=1e-6)
    assert found["conflict"]["labels"] == ["feedback.jsonl line 1", "feedback.jsonl line 3"]
    assert numbers(found) == pytest.approx([0, 0, 0, 0], abs=1e-5)


def questions(text):
    """Read the rows of the table: the question and three numbers."""
    rows = re.findall(r"│ +(\S+ or \S+) +│ +(\S+) │ +(\S+) │ +(\S+) │", text)
    return {name: [float(w) if w != "impossible" else w for w in widths] for name, *widths in rows}


def test_the_next_question_is_the_one_that_narrows_most_in_the_worse_case(tmp_path, capsys):
    files = write_case(tmp_path, [CHAIN[0]])
    choice = ["--first=a1", "--second=a2", *UNIT]
    assert main(["next-question", *files, *choice, "--candidates=[a1,a3,a2]"]) == 0
    text = capsys.readouterr().err
    assert "half-width now 1," in text
    found = questions(text)
    # With a1 ≽ a3, the answer a3 ≽ a2 would give [0, 1], but a2 ≽ a3 leaves [-1, 1].
    expected = {"a1 or a2": [0.5, 0.5, 0.5], "a1 or a3": [1, 1, 1], "a3 or a2": [1, 0.5, 1]}
    assert next(iter(found)) == "a1 or a2"
    assert found == {name: pytest.approx(widths, abs=1e-6) for name, widths in expected.items()}
    assert main(["next-question", *files, *choice, "--candidates=[a1,a2,a3]", "--top=1"]) == 0
    text = capsys.readouterr().err
    assert list(questions(text)) == ["a1 or a2"]
    assert "and 2 questions" in text


def test_an_answer_that_the_feedback_rules_out_is_called_impossible(tmp_path, capsys):
    files = write_case(tmp_path, [{"type": "policy", "better": "a1", "worse": "a2", "margin": 0.5}])
    assert main(["next-question", *files, "--first=a1", "--second=a2", *UNIT, "--candidates=[a1,a2]"]) == 0
    assert questions(capsys.readouterr().err) == {"a1 or a2": [0.25, 0.25, "impossible"]}


def test_other_policies_are_the_candidates_unless_some_are_named(tmp_path, capsys):
    names = ["a1", "a2", "[red]", "b", "c"]
    four = {name: [np.eye(5)[i]] for i, name in enumerate(names)}
    files = write_case(tmp_path, [], MDP(np.ones((1, 5, 1)), np.ones(1), 1), four)
    assert main(["next-question", *files, "--first=a1", "--second=a2"]) == 0
    assert list(questions(capsys.readouterr().err)) == ["[red] or b", "[red] or c", "b or c"]
    sentence = refusal(capsys, "next-question", *files, "--first=a1", "--second=a2", "--candidates=[b,b]")
    assert sentence.endswith("needs at least two different candidates, got b, b")


def test_check_lists_every_fault_then_looks_for_conflicts(tmp_path, capsys):
    mdp, policies, feedback = write_case(tmp_path, CHAIN)
    options = [mdp, "--policies", policies, "--feedback", feedback]
    assert main(["check", mdp]) == 0
    assert main(["check", *options]) == 0
    good = capsys.readouterr().err
    assert "S = 1, A = 3, H = 1, 3 policies, 2 comparisons and anchors, 0 demonstrations" in good
    cycle = [{"type": "policy", "better": a, "worse": b, "margin": 0.3} for a, b in ("12", "23", "31")]
    cycle = [{**line, "better": f"a{line['better']}", "worse": f"a{line['worse']}"} for line in cycle]
    write_case(tmp_path, [*cycle, CHAIN[0]])
    assert main(["check", *options]) == 1
    (_, clash) = capsys.readouterr().err.strip().splitlines()
    assert "agrees with feedback.jsonl line 1, 2, 3 unless" in clash
    assert "τ = 0.3" in clash
    write_case(tmp_path, [{**line, "margin": 0} for line in cycle])
    assert main(["check", *options]) == 0
    capsys.readouterr()
    write_case(tmp_path, [{"type": "policy", "better": "a9", "worse": "a1"}, CHAIN[0], {"type": "demo"}])
    assert main(["check", *options]) == 1
    first, second = capsys.readouterr().err.strip().splitlines()
    assert "line 1: 'a9' is no valid policy" in first
    assert "line 3: a demo must have either trajectories or a policy" in second


def test_bad_input_is_one_sentence_and_writes_nothing(tmp_path, capsys):
    files = write_case(tmp_path, CHAIN)
    choice = ["--first=a1", "--second=a2", f"--out={tmp_path / 'out'}"]
    np.savez(tmp_path / "pickled.npz", P=np.array([{}], dtype=object), mu0=np.ones(1), H=1)
    np.savez(tmp_path / "wide.npz", a1=np.full((1, 4), 0.25))
    (tmp_path / "text").write_text("not a folder")
    cases = [
        ([*files, "--first=a1", "--second=a7"], "there is no policy 'a7', the file of policies has a1, a2, a3"),
        ([*files, *choice, "--anchor=z"], "there is no policy 'z'"),
        ([str(tmp_path / "no.npz"), *files[1:], *choice], "no.npz does not exist"),
        ([*files[:2], str(tmp_path / "no.jsonl"), *choice], "no.jsonl does not exist"),
        ([str(tmp_path / "pickled.npz"), *files[1:], *choice], "array P holds Python objects, which are never loaded"),
        ([files[0], str(tmp_path / "wide.npz"), files[2], *choice], "a1 must have shape (1, 3)"),
        ([*files, *choice, "--space=linear"], "space linear needs an array features in"),
        ([*files, *choice, "--slack=relax"], "slack relax needs episodes"),
        ([*files, *choice, "--episodes=0"], "episodes must be at least 1, got 0"),
        ([*files, *choice, "--episodes=9", "--delta=1"], "delta must lie in (0, 1), got 1"),
        ([*files, *choice, "--low=2"], "the box must be finite with low <= high"),
        ([*files, *choice, "--radius=0"], "radius must be positive"),
        ([*files, *choice, "--radius=1", "--solver=lp"], 'solver "lp" cannot hold an l2 ball'),
        ([*files, *choice, "--tolerance=-1"], "tolerance must be at least 0, got -1"),
        ([*files, *choice[:2], f"--out={tmp_path / 'text'}"], "out must name a folder, got the file"),
    ]
    for arguments, message in cases:
        assert message in refusal(capsys, "assess", *arguments)
        assert not (tmp_path / "out").exists()
    assert "there is no file" in refusal(capsys, "check", tmp_path / "no.npz")
    assert "top must be at least 1, got 0" in refusal(capsys, "next-question", *files, *choice[:2], "--top=0")
    assert "needs at least two different candidates, got a3" in refusal(capsys, "next-question", *files, *choice[:2])
    with pytest.raises(SystemExit) as left:
        main(["assess", *files, "--first=a1"])
    assert left.value.code == 2


def simulate(folder, *options):
    out = folder / "out"
    assert main(["simulate-feedback", str(folder / "mdp.npz"), str(out), *map(str, options)]) == 0
    with np.load(out / "true_reward.npz") as file:
        return out, file["r"]


@pytest.fixture
def mdp():
    rng = np.random.default_rng(5)
    return MDP(rng.dirichlet(np.ones(4), size=(4, 2)), np.ones(4) / 4, 3)


def test_simulated_comparisons_are_true_of_the_reward_that_is_written(tmp_path, mdp):
    write_mdp(tmp_path / "mdp.npz", mdp)
    out, reward = simulate(tmp_path, "--count=15", "--seed=3")
    policies = read_policies(out / "policies.npz", mdp)
    gain = {name: float(returns(occupancies(mdp, pi), reward)) for name, pi in policies.items()}
    lines = [json.loads(line) for line in (out / "feedback.jsonl").read_text().splitlines()]
    assert [{line["better"], line["worse"]} for line in lines] == [{f"q{2 * i}", f"q{2 * i + 1}"} for i in range(15)]
    assert all(gain[line["better"]] > gain[line["worse"]] for line in lines)
    first_come = [line["better"] < line["worse"] for line in lines]
    assert 0 < sum(first_come) < 15  # the order of a pair does not tell the answer
    assert np.abs(reward).max() <= 1

    out, reward = simulate(tmp_path, "--count=15", "--seed=4", "--kind=trajectory")
    lines = [json.loads(line) for line in (out / "feedback.jsonl").read_text().splitlines()]
    for line in lines:
        better, worse = (sum(reward[s, a] for s, a in line[side]) for side in ("better", "worse"))
        assert better >= worse
        assert len(line["better"]) == len(line["worse"]) == 3


def test_one_seed_gives_one_feedback_and_other_policies_are_kept(tmp_path, mdp):
    write_mdp(tmp_path / "mdp.npz", mdp)
    (tmp_path / "out").mkdir()
    mine = {"mine": np.full((4, 2), 0.5), "q0": np.full((4, 2), 0.5)}
    write_policies(tmp_path / "out" / "policies.npz", mine)
    texts = []
    for seed in (1, 1, 2):
        out, reward = simulate(tmp_path, "--count=3", f"--seed={seed}")
        texts.append((out / "policies.npz").read_bytes() + reward.tobytes())
    assert texts[0] == texts[1] != texts[2]
    kept = read_policies(out / "policies.npz", mdp)
    assert set(kept) == {"mine", *(f"q{i}" for i in range(6))}
    assert (kept["mine"] == 0.5).all()
    assert not (kept["q0"] == 0.5).all()


@pytest.mark.parametrize("epsilon", [0.0, 0.2])
def test_experts_lose_no_more_than_epsilon_and_almost_all_of_it(tmp_path, mdp, epsilon):
    write_mdp(tmp_path / "mdp.npz", mdp)
    out, reward = simulate(tmp_path, "--count=0", "--demonstrations=5", f"--epsilon={epsilon}")
    policies = read_policies(out / "policies.npz", mdp)
    items, _ = read_feedback(out / "feedback.jsonl", mdp, policies)
    lost = np.array([plan(mdp, reward).value - returns(item.occupancy, reward) for item in items])
    assert [item.epsilon for item in items] == [epsilon] * 5
    assert (lost <= epsilon + 1e-12).all()
    # All but who can afford to act at random all the time: the others go to within a step of what they may lose.
    assert np.median(lost) >= epsilon - 0.05
    truth = build(RewardSpace("stationary", 4, 2, 3), mdp, items)
    assert truth.contains(reward.ravel(), 1e-9)


def test_unlucky_episodes_of_an_expert_are_reported_with_the_epsilon_that_admits_them(tmp_path, capsys):
    """A coin decides between a state worth 1 and one worth 0; one episode of the latter is 1/2 short."""
    write_mdp(tmp_path / "mdp.npz", MDP(np.full((2, 1, 2), 0.5), np.array([0.5, 0.5]), 1))
    np.savez(tmp_path / "worth.npz", r=np.array([[1.0], [0.0]]))
    shared = ["--kind=trajectory", "--count=0", "--demonstrations=1", f"--reward={tmp_path / 'worth.npz'}"]
    seen = set()
    for seed in range(8):
        out, reward = simulate(tmp_path, *shared, f"--seed={seed}")
        state = json.loads((out / "feedback.jsonl").read_text())["trajectories"][0][0][0]
        warning = capsys.readouterr().err
        assert reward.tolist() == [[1.0], [0.0]]
        assert ("WARNING" in warning) == (state == 1)
        assert state == 0 or ("0.5 less" in warning and "--epsilon 0.501" in warning)
        seen.add(state)
    assert seen == {0, 1}
    for seed in range(8):
        simulate(tmp_path, *shared, f"--seed={seed}", "--epsilon=0.501")
    assert "WARNING" not in capsys.readouterr().err


def test_a_true_reward_of_an_mdp_with_features_is_linear_in_them(tmp_path, mdp):
    features = np.random.default_rng(0).normal(size=(8, 2))
    write_mdp(tmp_path / "mdp.npz", mdp, features)
    _, reward = simulate(tmp_path)
    weights, *_ = np.linalg.lstsq(features, reward.ravel())
    assert features @ weights == pytest.approx(reward.ravel(), abs=1e-12)
    assert np.abs(weights).max() <= 1


def test_bad_options_of_a_simulation_are_one_sentence(tmp_path, capsys, mdp):
    write_mdp(tmp_path / "mdp.npz", mdp)
    np.savez(tmp_path / "flat.npz", r=np.zeros(8))
    np.savez(tmp_path / "pickled.npz", r=np.array([{}], dtype=object))
    cases = [
        ("--count=-1", "count must be at least 0, got -1"),
        ("--demonstrations=-1", "demonstrations must be at least 0, got -1"),
        ("--epsilon=-1", "epsilon must be a number of at least 0, got -1"),
        ("--seed=-1", "seed must be at least 0, got -1"),
        (f"--reward={tmp_path / 'no.npz'}", "no.npz does not exist, expected a file of arrays"),
        (f"--reward={tmp_path / 'flat.npz'}", "flat.npz: r must have shape (4, 2)"),
        (f"--reward={tmp_path / 'pickled.npz'}", "pickled.npz: array r holds Python objects, which are never loaded"),
        (f"--reward={tmp_path / 'mdp.npz'}", "mdp.npz must hold an array r, as from-gym writes it, got"),
    ]
    for option, message in cases:
        assert message in refusal(capsys, "simulate-feedback", tmp_path / "mdp.npz", tmp_path / "out", option)
        assert not (tmp_path / "out").exists()
    assert "no environment Nowhere" in refusal(capsys, "from-gym", "Nowhere", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert "folder must name a folder" in refusal(capsys, "from-gym", "FrozenLake", tmp_path / "mdp.npz")


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lake")
    assert main(["from-gym", "FrozenLake-v1", str(folder), "--horizon", "12"]) == 0
    return folder


def test_a_game_comes_with_its_table_its_reward_and_three_policies(lake):
    game = from_gym("FrozenLake-v1", 12)
    mdp, features = read_mdp(lake / "mdp.npz")
    assert features is None
    assert (mdp.transitions == game.mdp.transitions).all()
    assert (mdp.horizon, mdp.states, mdp.actions) == (12, 17, 4)
    with np.load(lake / "reward.npz") as file:
        assert (file["r"] == game.reward).all()
    policies = read_policies(lake / "policies.npz", mdp)
    assert list(policies) == ["optimal", "noisy", "uniform"]
    assert (policies["uniform"] == 0.25).all()
    assert set(np.unique(policies["optimal"])) == {0, 1}
    assert policies["noisy"] == pytest.approx(np.where(policies["optimal"] == 1, 0.925, 0.025))
    gains = [float(returns(occupancies(mdp, pi), game.reward)) for pi in policies.values()]
    assert gains[0] == pytest.approx(plan(mdp, game.reward).value)
    assert gains[0] > gains[1] > gains[2] > 0


@pytest.mark.parametrize("options", [["--reward"], ["--demonstrations=2", "--epsilon=0.1"], ["--kind=trajectory"]])
def test_the_whole_chain_covers_the_true_difference_and_narrows_it(lake, tmp_path, options):
    options = [f"--reward={lake / 'reward.npz'}" if option == "--reward" else option for option in options]
    files = [str(lake / name) for name in ("mdp.npz", "policies.npz")]
    assert main(["simulate-feedback", files[0], str(lake), "--count=12", *options]) == 0
    found = assessed(tmp_path, [*files, str(lake / "feedback.jsonl")], first="noisy", second="uniform")
    mdp = read_mdp(lake / "mdp.npz").mdp
    policies = read_policies(lake / "policies.npz", mdp)
    with np.load(lake / "true_reward.npz") as file:
        reward = file["r"]
    d = occupancies(mdp, policies["noisy"]) - occupancies(mdp, policies["uniform"])
    truth = float(returns(d, reward))
    assert found["m"] - 1e-9 <= truth <= found["M"] + 1e-9
    # Without feedback M = ‖d‖₁, with stages summed.
    assert found["half_width"] < np.abs(d.sum(0)).sum() - 1e-3
    items, _ = read_feedback(lake / "feedback.jsonl", mdp, policies)
    space = RewardSpace("stationary", 17, 4, 12)
    exact = interval(space.coefficients(d), build(space, mdp, items))
    assert (found["m"], found["M"]) == pytest.approx((exact.m, exact.M), abs=1e-9)
    assert found["answer"] == pytest.approx((found["m"] + found["M"]) / 2)
    assert all(other["worst_case_error"] >= found["half_width"] - 1e-9 for other in found["others"].values())
    assert list(found["others"]) == ([] if "--demonstrations=2" in options else ["Chebyshev centre"])
