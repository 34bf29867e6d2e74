"""Networks of the paper's experiments: ResNet-18, WRN-34-10 and ViT-Small, and small ones for digits.

Every network takes images in [0, 1] and returns logits: normalisation is part of the model, so that an
attack's ε is measured in pixels. Each is a `Classifier`: features, then one linear head, which is what the
boundary distances of `geometry` need.
"""

from __future__ import annotations

from typing import Literal, get_args

import timm
import torch.nn.functional as F
from torch import Tensor, nn, tensor

Arch = Literal["digits_cnn", "mnist_cnn", "resnet18", "wrn34_10", "vit_small"]

# Per-channel mean and standard deviation of the training images, by number of channels.
STATISTICS = {
    1: ((0.0,), (1.0,)),  # the digits need no normalisation
    3: ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),  # CIFAR-10
}


class Classifier(nn.Module):
    """Normalisation, a body that returns features, and a linear head.

    Args:
        body: (B, C, H, W) -> (B, D).
        num_features: D.
        num_classes: K.
        in_channels: C, 1 or 3; chooses the normalisation.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, body: nn.Module, num_features: int, num_classes: int, in_channels: int) -> None:
        super().__init__()
        mean, std = STATISTICS[in_channels]
        self.register_buffer("mean", tensor(mean).view(-1, 1, 1))
        self.register_buffer("std", tensor(std).view(-1, 1, 1))
        self.body = body
        self.head = nn.Linear(num_features, num_classes)

    def features(self, x: Tensor) -> Tensor:
        """Map images (B, C, H, W) in [0, 1] to penultimate features (B, D)."""
        return self.body((x - self.mean) / self.std)

    def forward(self, x: Tensor) -> Tensor:
        """Map images (B, C, H, W) in [0, 1] to logits (B, K)."""
        return self.head(self.features(x))


def create_model(arch: Arch, num_classes: int = 10, in_channels: int = 3, image_size: int | None = None) -> Classifier:
    """Build a network.

    Args:
        arch: `digits_cnn` and `mnist_cnn` (this package's default settings), `resnet18` and `wrn34_10` for
            32 x 32 images, `vit_small` (patches of 16).
        num_classes: K.
        in_channels: 1 or 3.
        image_size: side of the square images; by default 8, 28, 32, 32 and 224.

    Returns:
        The network, randomly initialised from torch's global generator.

    Raises:
        ValueError: for an unknown network or number of channels.
    """
    if arch not in get_args(Arch):
        raise ValueError(f"arch must be one of {', '.join(get_args(Arch))}, got {arch!r}")
    if in_channels not in STATISTICS:
        raise ValueError(f"in_channels must be 1 or 3, got {in_channels}")
    body: nn.Module
    match arch:
        case "digits_cnn":
            body, width = small_cnn(in_channels, image_size or 8, kernel=3, strides=(1, 2)), 64
        case "mnist_cnn":
            body, width = small_cnn(in_channels, image_size or 28, kernel=5, strides=(2, 2)), 64
        case "resnet18":
            body, width = cifar_resnet18(in_channels), 512
        case "wrn34_10":
            body, width = WideResNet(34, 10, in_channels), 640
        case "vit_small":
            body = timm.create_model(
                "vit_small_patch16_224", num_classes=0, in_chans=in_channels, img_size=image_size or 224
            )
            width = int(body.num_features)  # type: ignore[arg-type] # timm's networks have it as a number
    return Classifier(body, width, num_classes, in_channels)


def small_cnn(in_channels: int, image_size: int, kernel: int, strides: tuple[int, int]) -> nn.Sequential:
    """Two convolutions of 16 and 32 channels and a layer of 64 features."""
    side = -(-(-(-image_size // strides[0])) // strides[1])  # each convolution rounds up
    return nn.Sequential(
        nn.Conv2d(in_channels, 16, kernel, strides[0], padding=kernel // 2),
        nn.ReLU(),
        nn.Conv2d(16, 32, kernel, strides[1], padding=kernel // 2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * side * side, 64),
        nn.ReLU(),
    )


def cifar_resnet18(in_channels: int) -> nn.Module:
    """ResNet-18 whose stem keeps the resolution of 32 x 32 images: a 3 x 3 convolution and no pooling."""
    body = timm.create_model("resnet18", num_classes=0, in_chans=in_channels)
    body.conv1 = nn.Conv2d(in_channels, 64, 3, padding=1, bias=False)
    body.maxpool = nn.Identity()
    return body


class WideBlock(nn.Module):
    """Pre-activation residual block of a wide ResNet: BN-ReLU-conv twice, the shortcut after the first ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1, self.bn2 = nn.BatchNorm2d(inputs), nn.BatchNorm2d(outputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.shortcut = None if inputs == outputs else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, inputs, H, W) to (B, outputs, H / stride, W / stride)."""
        y = F.relu(self.bn1(x))
        residual = x if self.shortcut is None else self.shortcut(y)
        y = self.conv2(F.relu(self.bn2(self.conv1(y))))
        return residual + y


class WideResNet(nn.Module):
    """Wide ResNet (Zagoruyko & Komodakis, 2016) without dropout and head, for 32 x 32 images.

    Args:
        depth: 6 n + 4 layers.
        widen: factor on the widths 16, 32, 64.
        in_channels: C.
    """

    def __init__(self, depth: int, widen: int, in_channels: int = 3) -> None:
        super().__init__()
        blocks, remainder = divmod(depth - 4, 6)
        if remainder:
            raise ValueError(f"depth must be 6 n + 4, got {depth}")
        widths = [16, 16 * widen, 32 * widen, 64 * widen]
        layers: list[nn.Module] = [nn.Conv2d(in_channels, widths[0], 3, padding=1, bias=False)]
        for inputs, outputs, stride in zip(widths, widths[1:], (1, 2, 2), strict=False):
            layers.append(WideBlock(inputs, outputs, stride))
            layers.extend(WideBlock(outputs, outputs, 1) for _ in range(blocks - 1))
        self.layers = nn.Sequential(*layers, nn.BatchNorm2d(widths[-1]), nn.ReLU())
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, C, 32, 32) to (B, 64 * widen)."""
        return self.layers(x).mean((2, 3))
