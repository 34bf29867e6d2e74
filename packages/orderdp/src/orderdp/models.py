"""The networks: a small CNN for 28 x 28 digits, ResNets for CIFAR, and any of timm's."""

from __future__ import annotations

from typing import Any

import torchvision
from torch import Tensor, nn

CIFAR_RESNETS = {"cifar_resnet18": "resnet18", "cifar_resnet50": "resnet50"}


class SmallCNN(nn.Module):
    """Conv 5x5 (8, stride 2), conv 5x5 (16, stride 2), linear 32, linear K, with ReLU between them.

    Args:
        num_classes: K.
        in_channels: colour channels C.
        image_size: side of the square images, at least 5.
    """

    def __init__(self, num_classes: int = 10, in_channels: int = 1, image_size: int = 28) -> None:
        super().__init__()
        if image_size < 5:
            raise ValueError(f"image_size must be at least 5 for small_cnn, got {image_size}")
        side = -(-(-(-image_size // 2)) // 2)  # padding 2 and stride 2, twice
        self.layers = nn.Sequential(
            nn.Conv2d(in_channels, 8, 5, stride=2, padding=2), nn.ReLU(),
            nn.Conv2d(8, 16, 5, stride=2, padding=2), nn.ReLU(), nn.Flatten(),
            nn.Linear(16 * side * side, 32), nn.ReLU(), nn.Linear(32, num_classes),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """Map images (B, C, H, W) to logits (B, K)."""
        return self.layers(x)


def cifar_resnet(name: str, num_classes: int, in_channels: int = 3) -> nn.Module:
    """Build a ResNet for 32 x 32 images: 3x3 stem of stride 1 and no max-pooling (Sec. 3.4).

    Args:
        name: torchvision's name, such as `resnet18`.
        num_classes: K.
        in_channels: colour channels.
    """
    model: nn.Module = torchvision.models.get_model(name, weights=None, num_classes=num_classes)
    model.conv1 = nn.Conv2d(in_channels, 64, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
    model.maxpool = nn.Identity()
    return model


def create_model(name: str, num_classes: int, in_channels: int, image_size: int) -> nn.Module:
    """Build a network by name.

    Args:
        name: `small_cnn`, `cifar_resnet18`, `cifar_resnet50`, torchvision's `resnet18` or `resnet50`, or
            `timm:NAME` for any of timm's (Swin, ViT, ...).
        num_classes: K.
        in_channels: colour channels C.
        image_size: side of the square images.

    Returns:
        A network from images (B, C, H, W) to logits (B, K), with random weights.

    Raises:
        ValueError: if there is no such network, or it does not take such images.
    """
    if name == "small_cnn":
        return SmallCNN(num_classes, in_channels, image_size)
    if name in CIFAR_RESNETS:
        return cifar_resnet(CIFAR_RESNETS[name], num_classes, in_channels)
    if name.startswith("timm:"):
        import timm

        short = name.removeprefix("timm:")
        if not timm.is_model(short):
            raise ValueError(f"arch: timm has no network {short!r}")
        options: dict[str, Any] = {"num_classes": num_classes, "in_chans": in_channels}
        try:
            return timm.create_model(short, **options, img_size=image_size)  # transformers are built for one size
        except TypeError:
            return timm.create_model(short, **options)
    if name in ("resnet18", "resnet50"):
        if in_channels != 3:
            raise ValueError(f"arch {name} takes images of 3 channels, got {in_channels}")
        return torchvision.models.get_model(name, weights=None, num_classes=num_classes)
    raise ValueError(
        f"arch must be small_cnn, {', '.join(CIFAR_RESNETS)}, resnet18, resnet50 or timm:NAME, got {name!r}"
    )
