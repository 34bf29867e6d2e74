"""Projection of 3-D Gaussians to a picture (Sec. 3.3), by the conventions of gsplat.

t = R x + T,   S2 = J R S R^T J^T + 0.3 I,   S = Q diag(scale)^2 Q^T,   u = K t / z
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from megs2.camera import Camera

NEAR = 0.01  # what is nearer to the camera's plane is not drawn (Inria's release: 0.2)
BLUR = 0.3  # pixels^2 added to both axes of a projected Gaussian
FIELD_MARGIN = 0.3  # of the half field of view: beyond it the Jacobian is that of the border
ALPHA_MIN = 1 / 255  # what covers less of a pixel is skipped there


@dataclass(frozen=True)
class Projection:
    """N Gaussians in a picture.

    Attributes:
        means2d: (N, 2) centres, pixels.
        conics: (N, 3) inverse covariances: xx, xy, yy.
        depths: (N,) z in camera coordinates.
        radii: (N, 2) int32, half width and height in pixels of the box within which alpha can reach 1/255; 0 for
            those that are not drawn.
    """

    means2d: Tensor
    conics: Tensor
    depths: Tensor
    radii: Tensor


def rotation_matrices(quats: Tensor) -> Tensor:
    """Turn quaternions (..., 4), w x y z of any length but 0, into rotations (..., 3, 3)."""
    w, x, y, z = F.normalize(quats, dim=-1).unbind(-1)
    rows = [
        1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
        2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
        2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y),
    ]  # fmt: skip
    return torch.stack(rows, -1).reshape(*quats.shape[:-1], 3, 3)


def covariances(quats: Tensor, scales: Tensor) -> Tensor:
    """Return Q diag(scale)^2 Q^T (..., 3, 3) of raw quaternions (..., 4) and standard deviations (..., 3)."""
    half = rotation_matrices(quats) * scales[..., None, :]
    return half @ half.transpose(-1, -2)


def project(means: Tensor, quats: Tensor, scales: Tensor, opacities: Tensor, camera: Camera) -> Projection:
    """Project Gaussians to a camera's picture; differentiable but for the radii.

    A Gaussian's box is as large as it has to be for its opacity: alpha = o exp(-d^2 / 2) reaches 1/255 at
    d = sqrt(2 ln(255 o)), 3.33 for o = 1, so that no tile size changes the picture.

    Args:
        means: (N, 3).
        quats: (N, 4), of any length but 0.
        scales: (N, 3) standard deviations.
        opacities: (N,) in [0, 1].
        camera: on the same device, of the same type.

    Returns:
        The projection of all N; radii are 0 for what is behind the near plane, off the picture or too faint.
    """
    t = means @ camera.rotation.T + camera.translation
    z = t[:, 2]
    drawn = z > NEAR
    z_safe = torch.where(drawn, z, torch.ones_like(z))
    x, y = t[:, 0] / z_safe, t[:, 1] / z_safe
    means2d = torch.stack([camera.fx * x + camera.cx, camera.fy * y + camera.cy], -1)
    # The Jacobian's place is kept near the field of view, the centre is not.
    margin_x = FIELD_MARGIN * 0.5 * camera.width / camera.fx
    margin_y = FIELD_MARGIN * 0.5 * camera.height / camera.fy
    x = x.clamp(-camera.cx / camera.fx - margin_x, (camera.width - camera.cx) / camera.fx + margin_x)
    y = y.clamp(-camera.cy / camera.fy - margin_y, (camera.height - camera.cy) / camera.fy + margin_y)
    # Rows of J R: fx / z (R_x - x R_z), fy / z (R_y - y R_z).
    along_x = (camera.fx / z_safe)[:, None] * (camera.rotation[0] - x[:, None] * camera.rotation[2])
    along_y = (camera.fy / z_safe)[:, None] * (camera.rotation[1] - y[:, None] * camera.rotation[2])
    half = rotation_matrices(quats) * scales[:, None, :]
    row_x, row_y = torch.einsum("ni,nij->nj", along_x, half), torch.einsum("ni,nij->nj", along_y, half)
    xx, xy, yy = (row_x * row_x).sum(-1) + BLUR, (row_x * row_y).sum(-1), (row_y * row_y).sum(-1) + BLUR
    determinant = xx * yy - xy * xy
    drawn = drawn & (determinant > 0)
    safe = torch.where(drawn, determinant, torch.ones_like(determinant))
    conics = torch.stack([yy, -xy, xx], -1) / safe[:, None]
    radii = _radii(means2d, xx, yy, opacities, drawn, camera)
    return Projection(means2d, conics, z, radii)


@torch.no_grad()
def _radii(means2d: Tensor, xx: Tensor, yy: Tensor, opacities: Tensor, drawn: Tensor, camera: Camera) -> Tensor:
    """Return half the boxes (N, 2), int32; 0 where nothing is drawn."""
    reach = torch.sqrt(2 * torch.log((opacities / ALPHA_MIN).clamp(min=1)))
    radii = torch.ceil(reach[:, None] * torch.stack([xx, yy], -1).sqrt())
    size = means2d.new_tensor([camera.width, camera.height])
    drawn = drawn & ((means2d + radii > 0) & (means2d - radii < size)).all(-1) & (opacities >= ALPHA_MIN)
    # Far off the picture numbers may not fit an integer.
    return torch.where(drawn[:, None], radii.clamp(1, 1e6), torch.zeros_like(radii)).int()
