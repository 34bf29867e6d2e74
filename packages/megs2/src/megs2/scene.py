"""A scene that is trained: its parameters, an optimiser for each, and changes of both together.

Whatever selects, orders or adds Gaussians or lobes does the same to Adam's moments, so that training goes on as if
nothing had moved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adam

from megs2.gaussians import Gaussians, build

GEOMETRY = ("means", "scales", "quats", "opacities")
COLOUR = ("base", "rest")
LOBES = ("axes", "sharpness", "amplitudes")
NAMES = (*GEOMETRY, *COLOUR, *LOBES)

# Adam's rates (Sec. 3.1); that of the means is times the scene's extent, and falls. `rest` is 3DGS's.
RATES = {
    "means": 1.6e-4, "scales": 5e-3, "quats": 1e-3, "opacities": 5e-2, "base": 2.5e-3, "rest": 1.25e-4,
    "axes": 2.5e-3, "sharpness": 1e-2, "amplitudes": 2.5e-3,
}  # fmt: skip
MEANS_DECAY = 0.01  # what the rate of the means has fallen to at the end, log-linearly
Optimizers = dict[str, torch.optim.Optimizer]


class Scene(nn.Module):
    """Gaussians as parameters of a module; names and shapes are those of `Gaussians`, without what has width 0.

    Args:
        gaussians: to start from; None for none yet.
        fixed_axes: do not train the lobes' axes.
    """

    counts: Tensor

    def __init__(self, gaussians: Gaussians | None = None, fixed_axes: bool = False) -> None:
        super().__init__()
        self.fixed_axes = fixed_axes
        self.params = nn.ParameterDict()
        self.register_buffer("counts", torch.zeros(0, dtype=torch.long))
        self.register_load_state_dict_pre_hook(_take_shapes)  # type: ignore[no-untyped-call]
        if gaussians is not None:
            self.replace(gaussians)

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def gaussians(self) -> Gaussians:
        """The scene as a container of the parameters themselves."""
        given = {name: self.params[name] for name in NAMES if name in self.params}
        return build(**given, counts=self.counts)

    def replace(self, gaussians: Gaussians) -> None:
        """Take over other Gaussians; see `begin_anew` for their optimisers."""
        for name in NAMES:
            value: Tensor = getattr(gaussians, name)
            self.params.pop(name) if name in self.params else None
            if value.dim() < 2 or value.shape[1]:
                self.params[name] = self._parameter(name, value.detach().clone())
        self.counts = gaussians.counts.clone()

    def _parameter(self, name: str, value: Tensor) -> nn.Parameter:
        return nn.Parameter(value, requires_grad=not (self.fixed_axes and name == "axes"))


def _take_shapes(scene: nn.Module, state: Mapping[str, Any], prefix: str, *rest: Any) -> None:
    """Give a scene the sizes of a state that it is about to load."""
    if not isinstance(scene, Scene) or f"{prefix}counts" not in state:
        return
    scene.counts = torch.zeros_like(state[f"{prefix}counts"], device=scene.counts.device)
    scene.params.clear()
    for name in NAMES:
        value = state.get(f"{prefix}params.{name}")
        if isinstance(value, Tensor):
            scene.params[name] = scene._parameter(name, torch.zeros_like(value, device=scene.counts.device))


def build_optimizers(scene: Scene, rates: Mapping[str, float], extent: float) -> Optimizers:
    """Make an Adam for each parameter that is trained (Sec. 3.1).

    Args:
        scene: its parameters.
        rates: by name, as `RATES`.
        extent: of the scene, in its unit of length.

    Returns:
        Optimisers by name.
    """
    trained = {name: parameter for name, parameter in scene.params.items() if parameter.requires_grad}
    scale = {"means": extent}
    return {
        name: Adam([parameter], rates[name] * scale.get(name, 1.0), eps=1e-15, fused=True)
        for name, parameter in trained.items()
    }


def begin_anew(scene: Scene, optimizers: Mapping[str, torch.optim.Optimizer], gaussians: Gaussians) -> None:
    """Go on with other Gaussians of the same kind, and without moments.

    Args:
        scene: changed in place.
        optimizers: by name; the objects stay, since a trainer has hooks on them.
        gaussians: with the colour model of the scene.
    """
    scene.replace(gaussians)
    for name, optimizer in optimizers.items():
        optimizer.param_groups[0]["params"] = [scene.params[name]]
        optimizer.state.clear()


def change(
    scene: Scene,
    optimizers: Mapping[str, torch.optim.Optimizer],
    function: Callable[[Tensor], Tensor],
    names: tuple[str, ...] = NAMES,
) -> None:
    """Apply a change of rows or lobes to parameters, and to the moments of their optimisers.

    Args:
        scene: changed in place.
        optimizers: by name; changed in place.
        function: what is done to a tensor of the first dimension N.
        names: of the parameters that it is done to.
    """
    for name in names:
        if name not in scene.params:
            continue
        old = scene.params[name]
        new = scene._parameter(name, function(old.detach()).clone())
        scene.params[name] = new
        optimizer = optimizers.get(name)
        if optimizer is None:
            continue
        (group,) = optimizer.param_groups
        group["params"] = [new]
        if old in optimizer.state:
            moments = optimizer.state.pop(old)
            optimizer.state[new] = {
                key: function(value) if isinstance(value, Tensor) and value.shape == old.shape else value
                for key, value in moments.items()
            }


def keep_gaussians(scene: Scene, optimizers: Mapping[str, torch.optim.Optimizer], kept: Tensor) -> None:
    """Remove the Gaussians that a mask (N,) does not keep."""
    change(scene, optimizers, lambda tensor: tensor[kept])
    scene.counts = scene.counts[kept]


def keep_lobes(scene: Scene, optimizers: Mapping[str, torch.optim.Optimizer], kept: Tensor) -> None:
    """Remove the lobes that a mask (N, K) does not keep; those that stay move to the front, in their order.

    Args:
        scene: changed in place.
        optimizers: by name; changed in place.
        kept: among the active lobes.
    """
    kept = kept & scene.gaussians.active
    order = torch.argsort((~kept).to(torch.uint8), dim=1, stable=True)

    def pack(tensor: Tensor) -> Tensor:
        index = order if tensor.dim() == 2 else order[..., None].expand_as(tensor)
        return torch.gather(tensor, 1, index)

    change(scene, optimizers, pack, LOBES)
    scene.counts = kept.sum(1)
