"""Windows of trajectories: a state at t_0 and the positions at P later times (Sec. 3.1), and how they are split.

A window [t_0, t_0 + ΔT] of the `block` split lies wholly in one block of the trajectory, so that ΔT frames lie between
the states of two blocks. The `random` split, the published one, draws states at random from one trajectory: a state to
test on then has neighbours to train on a frame away.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import torch
from shared.seeding import generator
from torch import Tensor
from torch.utils.data import Dataset

from atom.features import near_atoms
from atom.horizons import lags_of, random_horizons
from atom.trajectories import Trajectory

log = logging.getLogger(__name__)

Split = Literal["block", "random"]
Hydrogens = Literal["drop", "input", "score"]
TOO_NEAR = 0.5  # Å; bonds of hydrogen are 0.7 Å
SHARES = (0.7, 0.1, 0.2)  # of a trajectory: to train, to validate, to test


class Batch(NamedTuple):
    """B windows; N is the size of the largest molecule among them, and smaller ones are padded.

    Attributes:
        x: positions at t_0 (B, N, 3), Å.
        v: frame differences (B, N, 3), Å per frame.
        z: atomic numbers (B, N), int64, 0 where padded.
        lags: (B, P), fs.
        bonds: adjacency (B, N, N).
        mask: atoms that exist (B, N), bool.
        scored: atoms that count in losses and metrics (B, N), bool.
        target: positions at t_0 + Δ_p (B, P, N, 3), Å.
        steps: lags in frames (B, P).
        molecule: index of the molecule (B,), int64.
    """

    x: Tensor
    v: Tensor
    z: Tensor
    lags: Tensor
    bonds: Tensor
    mask: Tensor
    scored: Tensor
    target: Tensor
    steps: Tensor
    molecule: Tensor

    def on(self, like: Tensor) -> Batch:
        """Return the batch on the device, and floats in the type, of a tensor."""
        return Batch(*(part.to(like) if part.is_floating_point() else part.to(like.device) for part in self))

    @property
    def state(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """What an operator is given: x, v, z, lags, bonds, mask."""
        return self.x, self.v, self.z, self.lags, self.bonds, self.mask


@dataclass(frozen=True, eq=False)
class Molecule:
    """A trajectory as the networks need it.

    Attributes:
        name: of the molecule.
        positions: (F, N, 3), float32, Å.
        numbers: atomic numbers (N,), int64.
        scored: atoms that count (N,), bool.
        bonds: graph of near atoms in the first frame (N, N).
        starts: frames t_0 from which a window of the longest horizon can start, increasing, int64.
        horizon: the longest ΔT, frames.
        frame_fs: fs from a frame to the next.
    """

    name: str
    positions: Tensor
    numbers: Tensor
    scored: Tensor
    bonds: Tensor
    starts: Tensor
    horizon: int
    frame_fs: float


def molecule_of(
    trajectory: Trajectory, horizon: int, hydrogens: Hydrogens = "drop", cutoff: float = 1.6, skip: int = 0
) -> Molecule:
    """Prepare a trajectory.

    Args:
        trajectory: the trajectory.
        horizon: the longest ΔT that is asked for, frames.
        hydrogens: `drop` them before the graph is made; keep them as `input` but score heavy atoms only; or `score`
            all atoms.
        cutoff: of the graph, Å.
        skip: frames left out at both ends.

    Raises:
        ValueError: if the trajectory is too short, its spacing is unknown, or fewer than two atoms are left.
    """
    where = trajectory.source
    frame_fs = trajectory.frame_fs
    if frame_fs is None:
        raise ValueError(f"{where}: the time between frames is unknown; set frame_fs")
    if hydrogens == "drop":
        trajectory = trajectory.heavy()
    numbers = torch.from_numpy(trajectory.numbers)
    if len(numbers) < 2:
        raise ValueError(
            f"{where}: {trajectory.name} has {len(numbers)} atom left without its hydrogens, expected at least 2; "
            "keep them (hydrogens: score)"
        )
    frames = len(trajectory)
    starts = torch.from_numpy(trajectory.starts(horizon))
    starts = starts[(starts >= skip) & (starts + horizon < frames - skip)]
    if not len(starts):
        without = f" (without {skip} at both ends)" if skip else ""
        raise ValueError(
            f"{where}: no window of {horizon} frames fits into its {frames} frames{without}; "
            f"expected at least {horizon + 1 + 2 * skip} evenly spaced ones"
        )
    positions = torch.from_numpy(trajectory.positions).to(torch.float32)
    scored = numbers > 1 if hydrogens == "input" else torch.ones(len(numbers), dtype=torch.bool)
    nearest = float(torch.pdist(positions[int(starts[0])]).min())
    if nearest < TOO_NEAR:
        log.warning("%s: two atoms are %.2g Å apart: are its positions in Å?", where, nearest)
    try:
        bonds = near_atoms(positions[int(starts[0])], cutoff)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    return Molecule(trajectory.name, positions, numbers, scored, bonds, starts, horizon, frame_fs)


def split_starts(
    molecule: Molecule, kind: Split, rng: torch.Generator, shares: Sequence[float] = SHARES
) -> tuple[Tensor, ...]:
    """Split the starts of windows into those to train, to validate and to test on.

    Args:
        molecule: whose windows.
        kind: `block`: blocks of time, each window wholly in one; `random`: any window may go anywhere.
        rng: of the random split.
        shares: of the blocks.

    Returns:
        Starts of each part, int64, increasing and disjoint.

    Raises:
        ValueError: if a part is empty; the message says how many frames it takes.
    """
    starts, horizon = molecule.starts, molecule.horizon
    first, last = int(starts[0]), int(starts[-1]) + horizon + 1  # the frames of all windows
    edges = [first + round((last - first) * sum(shares[:part])) for part in range(len(shares) + 1)]
    if kind == "block":
        parts = [starts[(starts >= a) & (starts + horizon < b)] for a, b in pairwise(edges)]
    else:
        order = torch.randperm(len(starts), generator=rng)
        counts = [round(len(starts) * sum(shares[:part])) for part in range(len(shares) + 1)]
        parts = [starts[order[a:b].sort().values] for a, b in pairwise(counts)]
    if not all(map(len, parts)):
        needed = int((horizon + 2) / min(shares)) + 1
        raise ValueError(
            f"{molecule.name}: {last - first} frames are too few for a {kind} split with windows of {horizon} frames; "
            f"expected about {needed} or more"
        )
    return tuple(parts)


def choose(starts: Tensor, count: int, rng: torch.Generator) -> Tensor:
    """Return `count` of the starts at random, increasing; all of them where there are no more."""
    return starts[torch.randperm(len(starts), generator=rng)[:count].sort().values]


class Windows(Dataset[Batch]):
    """Windows of several molecules; indexing with a list gives a batch at once (`collate_fn=as_is`).

    The horizon of a window to train on is a function of (seed, epoch, index), so a resumed run draws the same.

    Args:
        molecules: all molecules; indices in batches are places in this list.
        chosen: starts of windows for each molecule; none for a molecule that takes no part.
        horizon: ΔT, frames.
        lags: P.
        horizon_range: draw ΔT log-uniformly from this range instead.
        seed: of the horizons.
        epoch: returns the number of the epoch.

    Raises:
        ValueError: if a horizon is longer than that for which the starts of a molecule were found.
    """

    def __init__(
        self,
        molecules: Sequence[Molecule],
        chosen: Sequence[Tensor],
        horizon: int,
        lags: int,
        *,
        horizon_range: tuple[int, int] | None = None,
        seed: int = 0,
        epoch: Callable[[], int] = int,
    ) -> None:
        atoms = max(len(m.numbers) for m in molecules)
        used = [index for index, starts in enumerate(chosen) if len(starts)]
        longest = horizon if horizon_range is None else horizon_range[1]
        for m in (molecules[index] for index in used):
            if longest > m.horizon:  # frames of the next molecule would follow
                raise ValueError(f"{m.name}: windows were sought for up to {m.horizon} frames, got {longest}")
        self.offsets = torch.full((len(molecules),), -1)
        frames, total = [], 0
        for index in used:
            positions = molecules[index].positions
            self.offsets[index] = total
            total += len(positions)
            frames.append(_pad(positions, atoms, (1,)))
        self.positions = torch.cat(frames) if frames else torch.empty(0, atoms, 3)  # (frames of all, N, 3)
        self.numbers = torch.stack([_pad(m.numbers, atoms, (0,)) for m in molecules])
        self.scored = torch.stack([_pad(m.scored, atoms, (0,)) for m in molecules])
        self.bonds = torch.stack([_pad(m.bonds, atoms, (0, 1)) for m in molecules])
        self.sizes = torch.tensor([len(m.numbers) for m in molecules])
        self.frame_fs = torch.tensor([m.frame_fs for m in molecules])
        self.molecule = torch.cat([torch.full_like(starts, index) for index, starts in enumerate(chosen)])
        self.starts = torch.cat(list(chosen))
        self.horizon, self.lags, self.horizon_range = horizon, lags, horizon_range
        self.seed, self.epoch = seed, epoch
        self._drawn: tuple[int, Tensor] = (-1, torch.empty(0))

    def __getstate__(self) -> dict[str, Any]:
        """Fix the epoch: a process that is started by pickling gets the windows but not the trainer."""
        return self.__dict__ | {"epoch": partial(int, self.epoch())}

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> Batch:
        """Return a batch of one window."""
        return self.__getitems__([index])

    def __getitems__(self, indices: Sequence[int] | Tensor) -> Batch:
        """Return a batch of these windows."""
        where = torch.as_tensor(indices)
        molecule = self.molecule[where]
        atoms = int(self.sizes[molecule].max())
        steps = lags_of(self._horizons()[where], self.lags)  # (B, P)
        start = self.offsets[molecule] + self.starts[where]
        x = self.positions[start, :atoms]
        numbers = self.numbers[molecule, :atoms]
        return Batch(
            x=x,
            v=self.positions[start + 1, :atoms] - x,
            z=numbers,
            lags=steps * self.frame_fs[molecule, None],
            bonds=self.bonds[molecule, :atoms, :atoms],
            mask=numbers > 0,
            scored=self.scored[molecule, :atoms],
            target=self.positions[start[:, None] + steps, :atoms],
            steps=steps,
            molecule=molecule,
        )

    def _horizons(self) -> Tensor:
        if self.horizon_range is None:
            return torch.full((len(self),), self.horizon)
        epoch = self.epoch()
        if self._drawn[0] != epoch:
            rng = generator(self.seed, "horizons", epoch)
            self._drawn = epoch, random_horizons(len(self), *self.horizon_range, rng)
        return self._drawn[1]


def _pad(values: Tensor, atoms: int, axes: tuple[int, ...]) -> Tensor:
    """Append zeros to axes until they have so many entries."""
    shape = [atoms if axis in axes else size for axis, size in enumerate(values.shape)]
    padded = values.new_zeros(shape)
    padded[tuple(slice(size) for size in values.shape)] = values
    return padded
