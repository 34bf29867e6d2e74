"""The LightningModule in Lightning's own loops: what it solves, saves, resumes and measures."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from robrel.data import RobRelData
from robrel.evaluate import exact_interval, known_interval, rewards_of
from robrel.module import RobRelModule
from robrel.primal_dual import solve
from robrel.problems import ProblemOptions

SMALL = ProblemOptions(size=3, horizon=4, features=4)
EXPERT = replace(SMALL, expert="exact", epsilon=0.3)


class Stop(Callback):
    """Breaks off within an epoch."""

    def __init__(self, epoch):
        self.epoch = epoch

    def on_train_batch_end(self, trainer, *_):
        if trainer.current_epoch == self.epoch:
            raise InterruptedError


def data(problem=SMALL, **options):
    return RobRelData(**{"comparisons": 8, "instances": 3, "problem": problem, "blocks": 2, **options})


def trainer(epochs=4, **options):
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    return Trainer(max_epochs=epochs, accelerator="cpu", **{"logger": False, **quiet, **options})


def fit(module=None, source=None, epochs=4, path=None, **options):
    module = RobRelModule(block=25) if module is None else module
    trainer(epochs, **options).fit(module, data() if source is None else source, ckpt_path=path)
    return module


def measured(module, source):
    (found,) = trainer().test(module, source, verbose=False)
    return {name.removeprefix("test/"): value for name, value in found.items()}


def trained(module, source, epochs=4):
    return measured(fit(module, source, epochs), source)


def test_an_epoch_is_its_blocks_of_steps_and_t_their_product():
    module, source = RobRelModule(block=25, step_size=0.4, multiplier_bound=0.05), data()
    fit(module, source)
    stacked = source.stacked()
    both = [torch.cat([stacked.d, -stacked.d]), *(torch.cat([t, t]) for t in stacked[1:4]), *stacked[4:]]
    expected = solve(*both, steps=4 * 2 * 25, step_size=0.4, multiplier_bound=0.05)
    found = module.iteration.result()
    assert found.steps == 200
    assert torch.equal(found.x, expected.x)
    assert torch.equal(found.dual_bound, expected.dual_bound)


def test_the_gap_and_violation_of_the_averages_are_logged():
    module, source = RobRelModule(block=50), data()
    lightning = trainer(2)
    lightning.fit(module, source)
    found, logged = module.iteration.result(), lightning.callback_metrics
    assert logged["train/steps"] == 200
    assert logged["train/gap"] == pytest.approx(found.gap.abs().mean().item(), rel=1e-5)
    assert logged["train/violation"] == pytest.approx(found.violation.max().item(), rel=1e-5)


@pytest.mark.parametrize("problem", [SMALL, EXPERT], ids=["comparisons", "expert"])
@pytest.mark.parametrize("epoch", [1, 3])
def test_a_run_broken_off_after_any_epoch_resumes_to_the_bits_of_an_unbroken_one(problem, epoch, tmp_path):
    whole = fit(RobRelModule(block=5), data(problem))
    broken, saved = RobRelModule(block=5), ModelCheckpoint(tmp_path, save_on_train_epoch_end=True)
    with pytest.raises(InterruptedError):
        fit(broken, data(problem), callbacks=[saved, Stop(epoch)], enable_checkpointing=True)
    assert broken.iteration.done == (epoch * 2 + 1) * 5
    resumed = fit(RobRelModule(block=5), data(problem), path=saved.best_model_path)
    one, other = whole.iteration.state_dict(), resumed.iteration.state_dict()
    assert one["steps"] == other["steps"] == 40
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name
    # Not only the iterate: the average, which began anew, would be another.
    assert not torch.equal(broken.iteration.result().x, resumed.iteration.result().x)


def test_weights_alone_are_tested_to_the_same_measures_also_of_a_run_that_was_broken_off():
    source = data()
    for stop in (4, 2):
        module = RobRelModule(block=25)
        lightning = trainer(4, callbacks=[Stop(stop)])
        if stop < 4:
            with pytest.raises(InterruptedError):
                lightning.fit(module, source)
        else:
            lightning.fit(module, source)
        other = RobRelModule(block=25)
        other.load_state_dict(module.state_dict())
        assert measured(other, source) == measured(module, source)
        assert other.iteration.done == (200 if stop == 4 else stop * 50 + 25)


@pytest.mark.parametrize(
    ("module", "source", "epochs", "message"),
    [
        ({}, {}, 5, "another step size: rows, steps and step_size must agree"),
        ({"block": 26}, {}, 4, "another step size"),
        ({"step_size": 0.1}, {}, 4, "another step size"),
        ({}, {"seed": 1}, 4, "another step size"),
        ({}, {"instances": 4}, 4, "a problem of another size"),
        ({}, {"comparisons": 9}, 4, "a problem of another size"),
    ],
)
def test_a_state_of_other_steps_or_instances_is_refused(module, source, epochs, message):
    state = fit().state_dict()
    other = RobRelModule(**{"block": 25, **module})
    other.load_state_dict(state)
    with pytest.raises(ValueError, match=message):
        fit(other, data(**source), epochs)


@pytest.mark.parametrize("problem", [SMALL, EXPERT], ids=["comparisons", "expert"])
def test_the_certified_interval_contains_the_exact_one_and_the_ends_come_near(problem):
    module, source = RobRelModule(block=100), data(problem)
    found = trained(module, source, epochs=4)
    solution = module.iteration.result()
    for i, instance in enumerate(source.problems):
        m, M = known_interval(instance)
        assert solution.dual_bound[i] <= m + 1e-9
        assert -solution.dual_bound[i + 3] >= M - 1e-9
    half = np.mean([(bounds.M - bounds.m) / 2 for bounds in map(known_interval, source.problems)])
    assert half <= found["half_width"] <= half + 0.1
    assert found["coverage"] == 1
    assert 1 <= found["ratio"] < 1.1
    assert 0 < found["pd_error"] < 0.05
    assert found["pd_violation"] < 0.1
    assert found["pd_gap"] < 0.1


def test_the_error_falls_with_the_steps():
    errors = [trained(RobRelModule(block=b), data(), epochs=2)["pd_error"] for b in (10, 1000)]
    assert errors[1] < errors[0] / 3


def test_the_measures_of_the_iteration_are_those_of_its_solution():
    module, source = RobRelModule(block=25), data(instances=1)
    found = trained(module, source)
    solution, (m, M) = module.iteration.result(), exact_interval(source.problems[0])
    low, high = solution.dual_bound[0].item(), -solution.dual_bound[1].item()
    answer = (low + high) / 2
    expected = {
        "worst": max(M - answer, answer - m),
        "half_width": (high - low) / 2,
        "error": abs(answer - source.problems[0].truth),
        "interval_error": (abs(low - m) + abs(high - M)) / 2,
        "pd_error": (abs(solution.value[0].item() - m) + abs(-solution.value[1].item() - M)) / 2,
        "pd_gap": solution.gap.abs().mean().item(),
        "pd_violation": solution.violation.max().item(),
        "n": 1,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-5)


def test_linear_programs_need_no_iteration_and_have_ratio_1():
    module, source = RobRelModule(solver="lp"), data()
    found = measured(module, source)
    assert module.iteration is None
    assert module.state_dict()["_extra_state"] == {}
    assert found["ratio"] == pytest.approx(1)
    assert found["interval_error"] == 0
    assert "pd_error" not in found
    assert trained(RobRelModule(solver="lp"), source) == found


@pytest.mark.parametrize("method", ["arbitrary", "mle", "chebyshev", "max_margin", "max_entropy"])
def test_a_baseline_answers_by_its_reward_and_the_robust_method_measures_it_the_same(method):
    source = data(EXPERT if method == "max_entropy" else SMALL, instances=1)
    module = RobRelModule(method, seed=4)
    found = trained(module, source)
    assert module.iteration is None
    problem = source.problems[0]
    m, M = exact_interval(problem)
    answers = rewards_of(method, problem, np.random.default_rng([4, 5])) @ problem.d
    worst = np.mean([max(M - y, y - m) for y in answers])
    assert found["worst"] == pytest.approx(worst, rel=1e-5)
    assert found["ratio"] == pytest.approx(2 * worst / (M - m), rel=1e-5)
    beside = measured(RobRelModule(solver="lp", compare=[method], seed=4), source)
    assert beside["ratio"] == pytest.approx(1)
    assert beside[f"ratio_{method}"] == found["ratio"]


def test_conservative_slack_widens_the_iterations_interval_as_it_widens_the_exact_one():
    source = data(replace(SMALL, episodes=200, slack="conservative"))
    found = trained(RobRelModule(block=100), source)
    exact = measured(RobRelModule(solver="lp"), source)
    assert source.problems[0].widening > 0
    assert exact["half_width"] <= found["half_width"] <= exact["half_width"] + 0.1
    assert found["pd_error"] < 0.05
    assert found["coverage"] == exact["coverage"] == 1


def test_each_of_7_instances_is_scored_once_in_batches_of_2():
    found = measured(RobRelModule(solver="lp"), data(instances=7, eval_batch_size=2))
    assert found["n"] == 7
    assert found == measured(RobRelModule(solver="lp"), data(instances=7, eval_batch_size=7))


def test_the_measures_of_each_number_of_comparisons_are_those_of_it_alone():
    module = {"solver": "lp", "compare": ["chebyshev"]}
    together = measured(RobRelModule(**module), data(comparisons=[0, 4, 12]))
    alone = {n: measured(RobRelModule(**module), data(comparisons=n)) for n in (0, 4, 12)}
    for name in ("half_width", "worst", "error", "ratio_chebyshev"):
        for n in (0, 4, 12):
            assert together[f"{name}_{n}"] == pytest.approx(alone[n][name], rel=1e-6)
        assert together[name] == pytest.approx(np.mean([alone[n][name] for n in alone]), rel=1e-6)
    assert together["n"] == 9
    assert not any(name.endswith("_4") for name in alone[4])


def test_nothing_to_test_and_a_training_without_an_end_are_refused():
    with pytest.raises(ValueError, match="there is nothing to test: the iteration has not begun"):
        measured(RobRelModule(), data())
    with pytest.raises(ValueError, match=r"trainer.max_epochs must be at least 1: .*; got -1"):
        fit(epochs=-1, max_steps=3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block": 0}, "block must be at least 1, got 0"),
        ({"step_size": 0.0}, "step_size must be a finite number > 0, got 0.0"),
        ({"step_size": math.nan}, "step_size must be a finite number > 0, got nan"),
        ({"multiplier_bound": -1.0}, "multiplier_bound must be a finite number > 0, got -1.0"),
        ({"multiplier_bound": math.inf}, "multiplier_bound must be a finite number > 0, got inf"),
        ({"method": "best"}, "method must be one of robust, arbitrary, .*, got 'best'"),
        ({"compare": ["mle", "best"]}, "method must be one of robust, arbitrary, .*, got 'best'"),
    ],
)
def test_an_option_out_of_range_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        RobRelModule(**options)
