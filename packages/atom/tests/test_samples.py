"""Windows: what they hold, how they are split and chosen, padding, horizons, and molecules that are refused."""

import pickle
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from atom.features import rrwp
from atom.horizons import lags_of
from atom.samples import Windows, choose, molecule_of, split_starts
from atom.trajectories import Trajectory, read_trajectory

DATA = Path(__file__).parent / "data"


def draws(seed=0):
    return torch.Generator().manual_seed(seed)


def trajectory(frames=60, numbers=(6, 7, 8), tag=0.0, **changes):
    """Atom i of frame f lies at (f², i, tag), so that a position tells whose it is and v = (2 f + 1, 0, 0)."""
    f, i = np.meshgrid(np.arange(frames, dtype=np.float32), np.arange(len(numbers)), indexing="ij")
    positions = np.stack((f**2, i, np.full_like(f, tag)), axis=-1).astype(np.float32)
    options = {"frame_fs": 0.5, "source": "made up", **changes}
    return Trajectory(f"m{tag:g}", positions, np.array(numbers, dtype=np.int64), **options)


def molecules(horizon=10):
    return [molecule_of(trajectory(), horizon), molecule_of(trajectory(50, (8, 6), tag=1.0), horizon)]


def windows(horizon=10, lags=4, **options):
    made = molecules(options.pop("longest", horizon))
    return Windows(made, [m.starts for m in made], horizon, lags, **options)


def test_a_window_holds_the_state_at_its_start_and_the_positions_at_its_lags():
    batch = windows().__getitems__([7, 50 + 3])  # start 7 of the first molecule, 3 of the second
    assert batch.molecule.tolist() == [0, 1]
    assert batch.x[0].tolist() == [[49, 0, 0], [49, 1, 0], [49, 2, 0]]
    assert batch.x[1].tolist() == [[9, 0, 1], [9, 1, 1], [0, 0, 0]]
    assert batch.v.tolist() == [[[15, 0, 0]] * 3, [[7, 0, 0], [7, 0, 0], [0, 0, 0]]]
    assert batch.steps.tolist() == [[2, 5, 7, 10]] * 2
    assert batch.lags.tolist() == [[1.0, 2.5, 3.5, 5.0]] * 2  # 0.5 fs each
    assert batch.target[0, :, 1].tolist() == [[t**2, 1, 0] for t in (9, 12, 14, 17)]
    assert batch.target[1, :, 1].tolist() == [[t**2, 1, 1] for t in (5, 8, 10, 13)]


def test_a_smaller_molecule_is_padded_with_zeros_and_nothing_of_it_is_scored():
    batch = windows().__getitems__([0, 55])
    assert batch.z.tolist() == [[6, 7, 8], [8, 6, 0]]
    assert batch.mask.tolist() == batch.scored.tolist() == [[True] * 3, [True, True, False]]
    assert batch.bonds.tolist() == [[[0, 1, 0], [1, 0, 1], [0, 1, 0]], [[0, 1, 0], [1, 0, 0], [0, 0, 0]]]
    assert not batch.target[1, :, 2].any()
    assert batch.state == (batch.x, batch.v, batch.z, batch.lags, batch.bonds, batch.mask)


def test_a_batch_is_trimmed_to_its_largest_molecule():
    batch = windows().__getitems__([50, 53])
    assert [t.shape[1] for t in (batch.x, batch.v, batch.z, batch.bonds, batch.mask, batch.scored)] == [2] * 6
    assert (batch.bonds.shape, batch.target.shape) == ((2, 2, 2), (2, 4, 2, 3))
    assert batch.mask.all()


def test_a_batch_holds_what_its_windows_hold_alone():
    data = windows(horizon=6, longest=10, horizon_range=(4, 10))
    whole = data.__getitems__(torch.arange(len(data)))
    for index in (0, 17, 60, len(data) - 1):
        alone = data[index]
        atoms = alone.x.shape[1]
        assert torch.equal(alone.steps[0], whole.steps[index])
        assert torch.equal(alone.target[0], whole.target[index, :, :atoms])
        assert torch.equal(alone.x[0], whole.x[index, :atoms])


def test_every_start_of_the_longest_horizon_is_a_window_and_a_molecule_may_take_no_part():
    made = molecules()
    assert [m.starts.tolist() for m in made] == [list(range(50)), list(range(40))]  # F - ΔT
    last = Windows(made, [m.starts for m in made], 10, 4)[89]
    assert last.target[0, -1, 0, 0] == 49**2  # the last frame
    only = Windows(made, [made[0].starts[:0], made[1].starts], 10, 4)
    assert len(only) == 40
    assert only[0].molecule.item() == 1
    assert only[2].x[0].tolist() == [[4, 0, 1], [4, 1, 1]]


def test_windows_that_would_reach_into_the_next_molecule_are_refused():
    made = molecules(horizon=10)
    for options in ({"horizon": 11}, {"horizon": 10, "horizon_range": (4, 11)}):
        with pytest.raises(ValueError, match="m0: windows were sought for up to 10 frames, got 11"):
            Windows(made, [m.starts for m in made], lags=4, **options)


def test_horizons_are_a_function_of_seed_epoch_and_index():
    def horizons(seed=0, epoch=0, order=range(70)):
        data = windows(longest=20, horizon_range=(4, 20), seed=seed, epoch=lambda: epoch)
        return [int(data[i].steps[0, -1]) for i in order]

    first = horizons()
    assert {4, 20} <= set(first) <= set(range(4, 21))
    assert horizons(order=reversed(range(70))) == first[::-1]
    assert horizons(seed=1) != first
    assert horizons(epoch=1) != first


def test_the_horizons_of_a_running_data_set_change_with_the_epoch_and_come_back():
    now = [0]
    data = windows(longest=20, horizon_range=(4, 20), epoch=lambda: now[0])

    def horizons():
        return data.__getitems__(range(70)).steps[:, -1].tolist()

    found = []
    for now[0] in (0, 1, 0):
        found.append(horizons())
    assert found[0] == found[2] != found[1]


def test_lags_follow_the_horizon_that_is_drawn():
    data = windows(longest=20, horizon_range=(4, 20))
    steps = data.__getitems__(range(70)).steps
    assert torch.equal(steps, lags_of(steps[:, -1], 4))


def test_pickling_keeps_the_epoch_and_not_its_owner():
    now = [3]
    data = windows(longest=20, horizon_range=(4, 20), epoch=lambda: now[0])  # a lambda cannot be pickled
    expected = data.__getitems__(range(70))
    copy = pickle.loads(pickle.dumps(data))
    now[0] = 4
    assert all(torch.equal(a, b) for a, b in zip(copy.__getitems__(range(70)), expected, strict=True))
    assert copy.epoch() == 3
    assert not torch.equal(data.__getitems__(range(70)).steps, expected.steps)


def test_windows_of_two_blocks_share_no_frame_and_their_states_lie_a_horizon_apart():
    molecule = molecule_of(trajectory(200), 10)
    parts = split_starts(molecule, "block", draws())
    assert [(int(p[0]), int(p[-1])) for p in parts] == [(0, 129), (140, 149), (160, 189)]  # 70, 10 and 20 %
    assert all(torch.equal(p, torch.arange(int(p[0]), int(p[-1]) + 1)) for p in parts)
    for earlier, later in pairwise(parts):
        assert int(earlier[-1]) + 10 < int(later[0])  # its last target comes before the next state
        assert int(later[0]) - int(earlier[-1]) - 1 == 10  # frames between


def test_a_random_split_shares_all_windows_out_and_its_tests_have_neighbours_to_train_on():
    molecule = molecule_of(trajectory(1010), 10)
    train, val, test = split_starts(molecule, "random", draws())
    assert [len(train), len(val), len(test)] == [700, 100, 200]
    assert torch.equal(torch.cat((train, val, test)).sort().values, torch.arange(1000))
    assert all((part.diff() > 0).all() for part in (train, val, test))
    nearest = (test[:, None] - train).abs().min(dim=1).values
    assert (nearest == 1).float().mean() > 0.8  # 1 - 0.3² = 0.91 of them
    again, other = (split_starts(molecule, "random", draws(seed))[0] for seed in (0, 1))
    assert torch.equal(again, train)
    assert not torch.equal(other, train)
    blocks = split_starts(molecule, "block", draws())
    assert (blocks[2][:, None] - blocks[0]).abs().min() > 10


@pytest.mark.parametrize("name", ["CH3CHO", "CH3CH2OH", "C5H5N"])
def test_a_random_split_of_a_real_trajectory_leaks_the_test_states(name):
    molecule = molecule_of(read_trajectory(DATA / f"md_{name}.npz"), 16)
    apart = {}
    for kind in ("random", "block"):
        train, _, test = split_starts(molecule, kind, draws())
        away = molecule.positions[test][:, None] - molecule.positions[train]
        apart[kind] = float(away.square().mean((2, 3)).min(dim=1).values.mean())  # Å²
    assert apart["random"] < apart["block"] / 5


def test_blocks_keep_to_the_frames_that_are_not_skipped():
    molecule = molecule_of(trajectory(220), 10, skip=10)
    assert (int(molecule.starts[0]), int(molecule.starts[-1])) == (10, 199)
    parts = split_starts(molecule, "block", draws())
    assert [(int(p[0]), int(p[-1])) for p in parts] == [(10, 139), (150, 159), (170, 199)]


def test_a_trajectory_too_short_to_split_is_refused_with_a_length_that_suffices():
    with pytest.raises(ValueError, match=r"m0: 60 frames are too few for a block split .* about 121 or more"):
        split_starts(molecule_of(trajectory(60), 10), "block", draws())
    assert all(map(len, split_starts(molecule_of(trajectory(121), 10), "block", draws())))
    with pytest.raises(ValueError, match="m0: 13 frames are too few for a random split"):
        split_starts(molecule_of(trajectory(13), 10), "random", draws())


def test_choosing_gives_each_start_alike_without_repeats_and_in_order():
    starts = torch.arange(100, 120)
    counts = torch.zeros(20)
    for seed in range(500):
        chosen = choose(starts, 5, draws(seed))
        assert (chosen.diff() > 0).all()
        counts[chosen - 100] += 1
    assert counts.sum() == 2500
    assert (counts - 125).abs().max() < 4.5 * (500 * 0.25 * 0.75) ** 0.5
    assert torch.equal(choose(starts, 5, draws(1)), choose(starts, 5, draws(1)))


def test_choosing_more_than_there_are_gives_all():
    starts = torch.tensor([3, 5, 9])
    assert choose(starts, 50, draws()).tolist() == [3, 5, 9]
    assert choose(starts, 0, draws()).tolist() == []


def test_hydrogens_are_dropped_kept_unscored_or_scored():
    ethanol = read_trajectory(DATA / "md_CH3CH2OH.npz")
    heavy = torch.from_numpy(ethanol.numbers != 1)
    drop, kept, score = (molecule_of(ethanol, 16, hydrogens) for hydrogens in ("drop", "input", "score"))
    assert sorted(drop.numbers.tolist()) == [6, 6, 8]
    assert torch.equal(kept.numbers, torch.from_numpy(ethanol.numbers))
    assert torch.equal(kept.scored, heavy)
    assert torch.equal(drop.positions, kept.positions[:, heavy])
    assert drop.scored.all()
    assert score.scored.all()
    assert len(score.scored) == 9
    assert kept.bonds.sum() / 2 == 8  # ethanol has eight bonds, and two between heavy atoms
    assert drop.bonds.sum() / 2 == 2
    batch = Windows([kept], [kept.starts], 16, 4)[0]
    assert torch.equal(batch.scored[0], heavy)
    assert batch.mask.all()


def test_the_graph_is_made_after_the_hydrogens_are_dropped():
    places = np.zeros((30, 3, 3), np.float32)
    places[:, 1:, 0] = 1.0, 2.0  # C, H and O in a line: C-O is far, unless the cutoff grows to 2.4 Å
    bridged = Trajectory("bridged", places, np.array([6, 1, 8]), 1.0, "made up")
    assert molecule_of(bridged, 4, "input").bonds.tolist() == [[0, 1, 0], [1, 0, 1], [0, 1, 0]]
    bonds = molecule_of(bridged, 4, "drop").bonds
    assert bonds.tolist() == [[0, 1], [1, 0]]
    assert rrwp(bonds, 2).tolist() == [[0, 1], [0, 1]]


def test_the_graph_is_that_of_the_first_frame_that_is_used():
    places = np.zeros((30, 3, 3), np.float32)
    places[:, 1:, 0] = 1.5, 3.0
    places[:5, 2, 0] = 9.0
    parting = Trajectory("parting", places, np.array([6, 7, 8]), 1.0, "made up")
    assert molecule_of(parting, 4).bonds.sum() == 2
    assert molecule_of(parting, 4, skip=5).bonds.sum() == 4
    assert molecule_of(parting, 4, cutoff=1.4).bonds.sum() == 2  # grown to 2.1


def test_no_window_spans_a_break():
    broken = trajectory(40, breaks=np.array([19]))  # the step from 19 to 20 is none
    starts = molecule_of(broken, 10).starts
    assert starts.tolist() == [*range(10), *range(20, 30)]
    assert molecule_of(broken, 10, skip=5).starts.tolist() == [*range(5, 10), *range(20, 25)]


@pytest.mark.parametrize(("skip", "needed"), [(0, 11), (3, 17)])
def test_a_trajectory_too_short_is_refused_with_the_least_length(skip, needed):
    message = rf"made up: no window of 10 frames fits into its {needed - 1} frames.*; expected at least {needed} evenly"
    with pytest.raises(ValueError, match=message):
        molecule_of(trajectory(needed - 1), 10, skip=skip)
    assert molecule_of(trajectory(needed), 10, skip=skip).starts.tolist() == [skip]


def test_a_molecule_of_one_heavy_atom_needs_its_hydrogens():
    methane = trajectory(numbers=(6, 1, 1, 1, 1))
    message = r"made up: m0 has 1 atom left without its hydrogens, expected at least 2; keep them \(hydrogens: score\)"
    with pytest.raises(ValueError, match=message):
        molecule_of(methane, 10, "drop")
    assert molecule_of(methane, 10, "score").scored.tolist() == [True] * 5


def test_an_unknown_spacing_of_frames_is_refused():
    with pytest.raises(ValueError, match="made up: the time between frames is unknown; set frame_fs"):
        molecule_of(trajectory(frame_fs=None), 10)


def test_atoms_too_far_apart_for_a_graph_are_refused_with_the_file():
    far = Trajectory("far", np.array([[[0, 0, 0], [9.5, 0, 0]]] * 30, np.float32), np.array([6, 6]), 1.0, "far.xyz")
    with pytest.raises(ValueError, match=r"far\.xyz: the graph of 2 atoms needs two within 8\.1 Å of each other"):
        molecule_of(far, 4)
