"""When what happens in a training (Sec. 3.5), in steps of one view each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """Steps at which the phases begin and end; a step of None leaves a phase out.

    Attributes:
        densify_from: first step after which Gaussians may be added.
        densify_until: step at which that ends; None for no densification.
        densify_every: steps between two rounds.
        reinit_every: steps between re-initialisations from rendered depth while densifying; None for none.
        simplify_at: step of the simplification to a sample of the Gaussians.
        lobes_from: step at which the first lobe is switched on.
        lobes_every: steps between two lobes.
        prune_from: step of the first projection; None for no pruning.
        prune_until: step of the final cut.
        prune_every: steps between two projections.
    """

    densify_from: int = 500
    densify_until: int | None = None
    densify_every: int = 100
    reinit_every: int | None = None
    simplify_at: int | None = None
    lobes_from: int = 0
    lobes_every: int = 1000
    prune_from: int | None = None
    prune_until: int | None = None
    prune_every: int = 50

    def __post_init__(self) -> None:
        for name in ("densify_every", "lobes_every", "prune_every", "reinit_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"schedule.{name} must be at least 1, got {value}")
        for name in ("densify_from", "densify_until", "simplify_at", "lobes_from", "prune_from", "prune_until"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"schedule.{name} must be at least 0, got {value}")
        if (self.prune_from is None) != (self.prune_until is None):
            raise ValueError(
                f"schedule.prune_from and prune_until go together, got {self.prune_from} and {self.prune_until}"
            )
        phases = [self.densify_until, self.simplify_at, self.prune_from, self.prune_until]
        given = [step for step in phases if step is not None]
        if given != sorted(given) or (self.prune_from is not None and self.prune_from == self.prune_until):
            raise ValueError(
                "schedule must have densify_until <= simplify_at <= prune_from < prune_until, got "
                + ", ".join(map(str, phases))
            )

    def lobes_at(self, step: int, most: int) -> int:
        """Return how many lobes are active at a step before pruning, at most `most`."""
        return 0 if step < self.lobes_from else min(most, 1 + (step - self.lobes_from) // self.lobes_every)

    @property
    def pruning(self) -> range:
        """Steps at which variables are drawn to their proxies; the final cut comes before the one after the last."""
        if self.prune_from is None or self.prune_until is None:
            return range(0)
        return range(self.prune_from, self.prune_until)

    def projects_at(self, step: int) -> bool:
        """Whether the proxies are projected before this step, the first time included."""
        return step in self.pruning and (step - self.pruning.start) % self.prune_every == 0
