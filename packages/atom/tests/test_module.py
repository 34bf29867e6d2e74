"""The LightningModule: what is perturbed, how it is optimised, and how errors are summed up."""

import math
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from atom import ATOM, EGNO
from atom.data import MoleculeData
from atom.equivariance import random_rotations, turn
from atom.metrics import TrajectoryErrors
from atom.module import MoleculeModule, Optimisation, summary
from atom.operators import SolutionOperator
from lightning.pytorch import Trainer
from pytorch_optimizer import Muon
from shared.kernels.rotary import rotary
from torch import nn

DATA = Path(__file__).parent / "data"


class Stub:
    """What of a trainer the module looks at."""

    def __init__(self, step=0, rank=0, steps=100):
        self.global_step, self.global_rank, self.estimated_stepping_batches = step, rank, steps
        self.accumulate_grad_batches = 1


class Still(SolutionOperator):
    """A network without parameters."""

    def forward(self, x, v, z, lags, bonds, mask):
        return x[:, None].expand(-1, lags.shape[1], -1, -1)


class Shift(SolutionOperator):
    """Predicts x + b at every lag."""

    def __init__(self):
        super().__init__()
        self.b = nn.Parameter(torch.zeros(3))

    def forward(self, x, v, z, lags, bonds, mask):
        return ((x + self.b) * mask[..., None])[:, None].expand(-1, lags.shape[1], -1, -1)


def attached(operator=None, trainer=None, **options):
    """A module and its trainer, which would else be gone: the module holds it weakly."""
    module = MoleculeModule(operator or Shift(), **options)
    trainer = trainer or Stub()
    module.trainer = trainer
    return module, trainer


@pytest.fixture(scope="module")
def batch():
    data = MoleculeData(["CH3CH2OH", "C5H5N"], root=DATA, horizon=16, seed=0)
    data.setup()
    return data.parts["train"].__getitems__([0, 3, 250, 400])  # of both molecules: some rows are padded


# What is perturbed.


def test_without_noise_and_rotations_a_batch_stays_as_it_is(batch):
    module, _trainer = attached()
    assert module.perturbed(batch) is batch


def test_a_rotation_turns_state_and_targets_of_a_window_alike(batch):
    module, _trainer = attached(augment=True, seed=1)
    found = module.perturbed(batch)
    rotations = []
    for row in range(len(batch.x)):
        before, after = (torch.cat((b.x[row], b.v[row], b.target[row].flatten(0, 1))).double() for b in (batch, found))
        r = torch.linalg.lstsq(before, after).solution  # after = before r
        torch.testing.assert_close(before @ r, after, atol=1e-5, rtol=0)
        torch.testing.assert_close(r @ r.T, torch.eye(3).double(), atol=1e-5, rtol=0)
        assert torch.linalg.det(r) == pytest.approx(1, abs=1e-5)  # chirality stays
        rotations.append(r)
    assert all((one - other).abs().max() > 0.1 for one, other in pairwise(rotations))
    for name in ("z", "lags", "bonds", "mask", "scored", "molecule"):
        assert torch.equal(getattr(found, name), getattr(batch, name))


@pytest.mark.parametrize("options", [{"augment": True}, {"sigma_x": 0.1}, {"sigma_v": 0.1}], ids=str)
def test_perturbations_are_a_function_of_seed_step_and_rank(batch, options):
    def drawn(seed=0, step=3, rank=0):
        module, _trainer = attached(trainer=Stub(step, rank), seed=seed, **options)
        found = module.perturbed(batch)
        return torch.cat((found.x, found.v), dim=-1)

    torch.manual_seed(0)
    first = drawn()
    torch.manual_seed(1)
    assert torch.equal(drawn(), first)
    for other in (drawn(seed=1), drawn(step=4), drawn(rank=1)):
        assert not torch.equal(other, first)


def test_noise_has_its_two_deviations_and_spares_padding_and_targets(batch):
    many = type(batch)(*(part.repeat(200, *[1] * (part.ndim - 1)) for part in batch))
    module, _trainer = attached(sigma_x=0.1, sigma_v=0.002)
    found = module.perturbed(many)
    for name, sigma in (("x", 0.1), ("v", 0.002)):
        noise = getattr(found, name) - getattr(many, name)
        assert (noise[~many.mask] == 0).all()
        assert float(noise[many.mask].std()) == pytest.approx(sigma, rel=0.03)
    assert torch.equal(found.target, many.target)
    on_targets, _trainer = attached(sigma_x=0.1, noise_targets=True)
    noise = on_targets.perturbed(many).target - many.target
    kept = many.mask[:, None].expand(noise.shape[:3])
    assert (noise[~kept] == 0).all()
    assert float(noise[kept].std()) == pytest.approx(0.1, rel=0.03)


def test_noise_and_rotations_are_for_training_only(batch):
    module, trainer = attached(sigma_x=1.0, augment=True)
    trainer.datamodule = SimpleNamespace(names=["a", "b"], lags=8)
    module.on_test_epoch_start()
    module.test_step(batch, 0)
    atoms = batch.scored.sum(1)
    each = ((batch.x[:, None] - batch.target).square().sum((1, 2, 3)) / (3 * 8 * atoms)).double()
    assert float(module.errors.compute()["s2t"]) == pytest.approx(float(each.mean()), rel=1e-5)


def test_the_loss_of_a_step_is_the_mean_squared_error_of_scored_atoms(batch):
    module, _trainer = attached()
    loss = module.training_step(batch, 0)
    entries = (batch.x[:, None] - batch.target).square()[batch.scored[:, None].expand(-1, 8, -1)]
    assert loss.item() == pytest.approx(float(entries.mean()), rel=1e-5)
    assert loss.requires_grad and not module.step_losses[0].requires_grad


# How it is optimised.


def rates(optim, steps, trainer=None):
    """The learning rate of the first steps."""
    module, _trainer = attached(optim=optim, trainer=trainer or Stub(steps=steps))
    found = module.configure_optimizers()
    optimizer, schedule = found["optimizer"], found["lr_scheduler"]["scheduler"]
    assert found["lr_scheduler"]["interval"] == "step"
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return rates


def test_the_cosine_falls_from_the_rate_to_zero():
    found = rates(Optimisation(lr=0.02), 100)
    assert found == pytest.approx([0.01 * (1 + math.cos(math.pi * step / 100)) for step in range(100)], rel=1e-12)
    assert (found[0], found[50]) == (0.02, pytest.approx(0.01))


def test_a_warmup_rises_linearly_to_the_schedule():
    found = rates(Optimisation(lr=0.5, schedule="constant", warmup_steps=4), 8)
    assert found == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.5, 0.5, 0.5])
    cosine = rates(Optimisation(lr=0.5, warmup_steps=4), 8)
    assert cosine == pytest.approx([a * (1 + math.cos(math.pi * t / 8)) / 2 for t, a in enumerate(found)])


def test_a_cosine_without_an_end_is_refused():
    with pytest.raises(ValueError, match=r"cosine needs an end: set trainer\.max_epochs or trainer\.max_steps"):
        rates(Optimisation(), 1, Stub(steps=math.inf))
    assert rates(Optimisation(lr=0.3, schedule="constant"), 2, Stub(steps=math.inf)) == [0.3, 0.3]


def optimizer_of(operator, **options):
    module, _trainer = attached(operator, optim=Optimisation(**options))
    return module.configure_optimizers()["optimizer"]


def test_adamw_has_all_its_options():
    optimizer = optimizer_of(ATOM(depth=2, width=16, heads=2), lr=0.1, weight_decay=0.2, beta1=0.3, beta2=0.4, eps=0.5)
    assert type(optimizer) is torch.optim.AdamW
    (group,) = optimizer.param_groups
    expected = {"weight_decay": 0.2, "betas": (0.3, 0.4), "eps": 0.5, "amsgrad": True}
    assert {name: group[name] for name in expected} == expected
    assert group["initial_lr"] == 0.1


@pytest.mark.parametrize("operator", [ATOM(depth=2, width=16, heads=2), EGNO(depth=2, width=8)], ids=["atom", "egno"])
def test_muon_has_the_matrices_and_adamw_the_rest(operator):
    optimizer = optimizer_of(operator, optimizer="muon", lr=0.1, muon_lr=0.2, weight_decay=0.3, beta2=0.95, eps=1e-9)
    assert type(optimizer) is Muon
    matrices, others = optimizer.param_groups
    trained = [p for p in operator.parameters() if p.requires_grad]
    assert (matrices["use_muon"], matrices["initial_lr"], matrices["weight_decay"]) == (True, 0.2, 0.3)
    assert (others["use_muon"], others["initial_lr"], others["weight_decay"]) == (False, 0.1, 0.3)
    assert (others["betas"], others["eps"]) == ((0.9, 0.95), 1e-9)
    assert {id(p) for p in matrices["params"]} == {id(p) for p in trained if p.ndim == 2}
    assert {id(p) for p in others["params"]} == {id(p) for p in trained if p.ndim != 2}
    assert matrices["params"] and others["params"]


def test_muon_is_content_with_a_network_that_has_no_matrix():
    (group,) = optimizer_of(Shift(), optimizer="muon").param_groups
    assert not group["use_muon"]


def test_what_is_fixed_is_not_optimised():
    operator = ATOM(depth=3, width=16, heads=2, value_residual="fixed")
    (group,) = optimizer_of(operator).param_groups
    assert operator.mix.numel() == 2
    assert id(operator.mix) not in {id(p) for p in group["params"]}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": 0.0}, r"optim\.lr must be a finite number > 0, got 0.0"),
        ({"lr": math.inf}, r"optim\.lr must be a finite number > 0, got inf"),
        ({"muon_lr": -1.0}, r"optim\.muon_lr must be a finite number > 0, got -1.0"),
        ({"eps": math.nan}, r"optim\.eps must be a finite number > 0, got nan"),
        ({"beta1": 1.0}, r"optim\.beta1 must lie in \[0, 1\), got 1.0"),
        ({"beta2": -0.1}, r"optim\.beta2 must lie in \[0, 1\), got -0.1"),
        ({"weight_decay": -1e-9}, r"optim\.weight_decay must be a finite number >= 0, got -1e-09"),
        ({"warmup_steps": -1}, r"optim\.warmup_steps must be at least 0, got -1"),
    ],
    ids=str,
)
def test_a_bad_option_of_the_optimiser_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Optimisation(**options)


@pytest.mark.parametrize("option", ["sigma_x", "sigma_v"])
@pytest.mark.parametrize("value", [-0.1, math.inf, math.nan])
def test_a_bad_deviation_is_refused(option, value):
    with pytest.raises(ValueError, match=f"{option} must be a finite number >= 0, got {value}"):
        MoleculeModule(Shift(), **{option: value})


def test_the_attention_turns_its_queries_by_the_shared_kernel():
    operator = ATOM(depth=2, width=16, heads=2)
    MoleculeModule(operator)
    assert [block.attention.rotate for block in operator.blocks] == [rotary, rotary]


def test_batches_of_one_accumulated_step_are_perturbed_apart(batch):
    module, trainer = attached(Still(), augment=True)
    alike = [module.perturbed(batch, index).x for index in (0, 1)]
    assert alike[0].equal(alike[1])
    trainer.accumulate_grad_batches = 2
    apart = [module.perturbed(batch, index).x for index in (0, 1)]
    assert not apart[0].equal(apart[1])


def test_mixed_precision_rounds_neither_rotated_windows_nor_egno(batch):
    r = random_rotations(len(batch.x), np.random.default_rng(0))
    torch.manual_seed(0)
    egno = EGNO(depth=2, width=8)
    exact = turn(batch.x, r), egno(*batch.state)
    with torch.autocast("cpu", torch.bfloat16):
        rough = turn(batch.x, r), egno(*batch.state)
    for a, b in zip(exact, rough, strict=True):
        assert a.dtype == b.dtype == torch.float32
        assert a.equal(b)


def test_a_network_without_parameters_is_refused_by_name(batch):
    with pytest.raises(ValueError, match="operator Still has no parameter to train"):
        attached(Still())[0].configure_optimizers()


def test_mixed_precision_rounds_no_positions(batch):
    """The state passes by the blocks in float32, so that an untrained network is the identity to the last bit."""
    operator = ATOM(depth=2, width=16, heads=2, delta_update=True)
    trainer = Trainer(accelerator="cpu", precision="bf16-mixed", logger=False, enable_checkpointing=False)
    with trainer.precision_plugin.forward_context():
        predicted = operator(*batch.state)
    assert predicted.dtype == torch.float32
    assert torch.equal(predicted, batch.x[:, None].expand_as(predicted))
    nn.init.normal_(operator.readout.weight, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        exact = operator.eval()(*batch.state) - batch.x[:, None]
        with trainer.precision_plugin.forward_context():
            rough = operator(*batch.state) - batch.x[:, None]
    error = (rough - exact).norm() / exact.norm()
    assert 1e-5 < error < 0.05  # the blocks are in bfloat16


# How errors are summed up.


def data_of(present, unseen):
    return SimpleNamespace(names=["a", "b", "c"], present=torch.tensor(present), unseen=torch.tensor(unseen))


def errors_of(sums, counts):
    errors = TrajectoryErrors(3, 2)
    errors.sums, errors.counts = torch.tensor(sums), torch.tensor(counts)
    return errors


SUMS = [[1.0, 3.0], [0.5, 1.5], [8.0, 0.0]]  # Å², over windows, at two lags
COUNTS = [2, 1, 4]


def test_the_headline_is_of_unseen_molecules_in_hundredths():
    found = summary(errors_of(SUMS, COUNTS), data_of([True] * 3, [False, True, True]))
    # b and c: (0.5 + 8) / 5 at lag 1 and (1.5 + 0) / 5 at lag 2; a alone: 0.5 and 1.5.
    assert found == pytest.approx(
        {
            "lag1": 170.0, "lag2": 30.0, "s2t": 100.0, "s2s": 30.0, "seen_s2t": 100.0, "seen_s2s": 150.0,
            "s2t/a": 100.0, "s2t/b": 100.0, "s2t/c": 100.0, "n": 7,
        }
    )  # fmt: skip


def test_without_unseen_molecules_the_headline_is_of_those_that_are_scored():
    found = summary(errors_of([SUMS[0], [0, 0], [0, 0]], [2, 0, 0]), data_of([True, False, False], [False, True, True]))
    assert found == pytest.approx({"lag1": 50.0, "lag2": 150.0, "s2t": 100.0, "s2s": 150.0, "n": 2})


def test_a_predictor_that_knows_nothing_of_unseen_molecules_has_no_headline():
    found = summary(errors_of([SUMS[0], [0, 0], [0, 0]], [2, 0, 0]), data_of([True] * 3, [False, True, True]))
    assert found == pytest.approx({"seen_s2t": 100.0, "seen_s2s": 150.0, "s2t/a": 100.0, "n": 2})
