"""Cameras, photographs with cameras, and captures: what a scene is trained on.

Camera coordinates are those of OpenCV and COLMAP: x to the right, y down, z forward; pixel centres lie at +0.5.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Camera:
    """A pinhole camera without distortion.

    Attributes:
        rotation: (3, 3) R, world to camera: t = R x + T.
        translation: (3,) T.
        fx: focal length in pixels, horizontally.
        fy: vertically.
        cx: principal point in pixels from the left edge.
        cy: from the upper edge.
        width: of the image, pixels.
        height: of the image, pixels.
    """

    rotation: Tensor
    translation: Tensor
    fx: float
    fy: float
    cx: float
    cy: float
    width: int
    height: int

    @property
    def centre(self) -> Tensor:
        """Where the camera is, (3,): -R^T T."""
        return -self.rotation.T @ self.translation

    @property
    def view_matrix(self) -> Tensor:
        """World to camera, (4, 4)."""
        matrix = torch.eye(4).to(self.rotation)
        matrix[:3, :3], matrix[:3, 3] = self.rotation, self.translation
        return matrix

    @property
    def intrinsics(self) -> Tensor:
        """K, (3, 3)."""
        return self.rotation.new_tensor([[self.fx, 0, self.cx], [0, self.fy, self.cy], [0, 0, 1]])

    def to(self, target: torch.device | torch.dtype | str) -> Camera:
        """Return the camera on a device or in a floating-point type."""
        return replace(self, rotation=self.rotation.to(target), translation=self.translation.to(target))

    def resized(self, width: int, height: int) -> Camera:
        """Return the camera of the same picture at another size; intrinsics scale with it."""
        x, y = width / self.width, height / self.height
        return replace(self, fx=self.fx * x, cx=self.cx * x, fy=self.fy * y, cy=self.cy * y, width=width, height=height)


def look_at(eye: Tensor, target: Tensor, up: Tensor, *, fov: float, width: int, height: int) -> Camera:
    """Place a camera with square pixels and its principal point in the middle.

    Args:
        eye: (3,) where it is.
        target: (3,) what it looks at.
        up: (3,) a direction that shall point up in the picture; not parallel to the line of sight.
        fov: horizontal angle of view, degrees.
        width: pixels.
        height: pixels.

    Returns:
        The camera, in the type of `eye`.

    Raises:
        ValueError: if `eye` is `target`, or the line of sight is parallel to `up`.
    """
    forward = target - eye
    right = torch.linalg.cross(forward, up)
    if not float(forward.norm()) > 0 or not float(right.norm()) > 1e-8 * float(forward.norm() * up.norm()):
        raise ValueError("eye and target must differ, and up must not be parallel to the line of sight")
    forward, right = forward / forward.norm(), right / right.norm()
    rotation = torch.stack([right, torch.linalg.cross(forward, right), forward])
    focal = 0.5 * width / float(torch.tan(torch.deg2rad(torch.tensor(fov, dtype=torch.float64)) / 2))
    return Camera(rotation, -rotation @ eye, focal, focal, width / 2, height / 2, width, height)


@dataclass(frozen=True)
class View:
    """A photograph and its camera.

    Attributes:
        camera: the camera, whose size is the image's.
        image: (H, W, 3) float32 in [0, 1].
        name: of the photograph, unique in a capture.
    """

    camera: Camera
    image: Tensor
    name: str


@dataclass(frozen=True)
class Capture:
    """What is known of a real scene.

    Attributes:
        name: of the scene.
        train: photographs to train on.
        test: photographs held out.
        points: (P, 3) float32, on or near surfaces.
        colours: (P, 3) float32 in [0, 1], of the points.
        background: (3,) float32 in [0, 1], behind everything.
        val: photographs to choose settings by; neither trained on nor tested.
    """

    name: str
    train: list[View]
    test: list[View]
    points: Tensor
    colours: Tensor
    background: Tensor
    val: list[View] = field(default_factory=list)

    @property
    def extent(self) -> float:
        """1.1 times the largest distance of a training camera from their mean, 1 if they are at one place."""
        centres = torch.stack([view.camera.centre for view in self.train])
        radius = float((centres - centres.mean(0)).norm(dim=1).max())
        return 1.1 * radius if radius > 0 else 1.0
