from __future__ import annotations

import pytest
import torch
from gsplat.cuda._torch_impl import _fully_fused_projection, _quat_to_rotmat
from megs2.camera import Camera, look_at
from megs2.projection import covariances, project, rotation_matrices


def random_scene(n: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(seed)
    means = 2 * torch.randn(n, 3, generator=g)
    quats, scales = torch.randn(n, 4, generator=g), torch.exp(torch.randn(n, 3, generator=g) - 2)
    return tuple(t.to(dtype) for t in (means, quats, scales, torch.rand(n, generator=g)))


def camera(dtype: torch.dtype = torch.float64) -> Camera:
    eye, up = torch.tensor([1.0, -5.0, 2.0]), torch.tensor([0.0, 0.0, 1.0])
    seen = look_at(eye, torch.zeros(3), up, fov=40, width=60, height=44).to(dtype)
    return Camera(seen.rotation, seen.translation, seen.fx, 1.1 * seen.fy, 20.0, 30.0, 60, 44)  # off-centre on purpose


def test_projection_is_gsplats() -> None:
    means, quats, scales, _ = random_scene(400)
    seen = camera()
    ours = project(means, quats, scales, torch.ones(400, dtype=torch.float64), seen)
    theirs = _fully_fused_projection(
        means, covariances(quats, scales), seen.view_matrix[None], seen.intrinsics[None], 60, 44
    )
    radii, means2d, depths, conics, _ = (None if t is None else t[0] for t in theirs)
    front = depths > 0.01
    torch.testing.assert_close(ours.depths, depths)
    torch.testing.assert_close(ours.means2d[front], means2d[front], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(ours.conics[front], conics[front], rtol=1e-7, atol=1e-12)
    drawn = (radii > 0).all(1)
    assert 20 < int(drawn.sum()) < 380  # both kinds occur
    # theirs reach 3.33 standard deviations, ours what an opacity of 1 needs, 3.329
    both = drawn & (ours.radii > 0).all(1)
    assert int((drawn != (ours.radii > 0).all(1)).sum()) <= 1
    assert int((radii[both].long() - ours.radii[both].long()).abs().max()) <= 1


def test_rotations_are_gsplats_and_orthonormal_for_quaternions_of_any_length() -> None:
    quats = 7 * torch.randn(50, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = rotation_matrices(quats)
    torch.testing.assert_close(found, _quat_to_rotmat(quats))
    torch.testing.assert_close(found @ found.transpose(1, 2), torch.eye(3).double().expand(50, 3, 3))
    torch.testing.assert_close(torch.linalg.det(found), torch.ones(50).double())


def test_lone_gaussian_on_the_axis_has_variance_f_sigma_over_z_squared_plus_blur() -> None:
    seen = Camera(torch.eye(3), torch.zeros(3), 100.0, 100.0, 8.5, 8.5, 17, 17)
    found = project(
        torch.tensor([[0.0, 0, 5]]), torch.tensor([[1.0, 0, 0, 0]]), torch.full((1, 3), 0.1), torch.tensor([0.8]), seen
    )
    torch.testing.assert_close(found.means2d, torch.tensor([[8.5, 8.5]]))
    torch.testing.assert_close(found.conics, torch.tensor([[1 / 4.3, 0, 1 / 4.3]]))
    # sqrt(2 ln(255 * 0.8) * 4.3) = 6.76
    assert found.radii.tolist() == [[7, 7]]


@pytest.mark.parametrize(
    ("place", "opacity"),
    [((0, 0, 0.005), 1.0), ((0, 0, -3), 1.0), ((100, 0, 5), 1.0), ((0, 0, 5), 0.003), ((float("nan"), 0, 5), 1.0)],
)
def test_what_is_too_near_behind_aside_faint_or_no_number_is_not_drawn(
    place: tuple[float, float, float], opacity: float
) -> None:
    seen = Camera(torch.eye(3), torch.zeros(3), 100.0, 100.0, 8.5, 8.5, 17, 17)
    found = project(
        torch.tensor([place], dtype=torch.float32),
        torch.tensor([[1.0, 0, 0, 0]]),
        torch.full((1, 3), 0.1),
        torch.tensor([opacity]),
        seen,
    )
    assert found.radii.tolist() == [[0, 0]]
