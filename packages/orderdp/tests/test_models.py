"""The networks: parameters counted by hand, and what is not found."""

import pytest
import torch
from orderdp.models import SmallCNN, create_model


def parameters(model):
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("image_size", "side"), [(28, 7), (8, 2), (32, 8), (30, 8), (5, 2)])
def test_small_cnn_has_the_parameters_counted_by_hand(image_size, side):
    convolutions = (25 * 1 * 8 + 8) + (25 * 8 * 16 + 16)
    linears = (16 * side * side * 32 + 32) + (32 * 10 + 10)
    model = create_model("small_cnn", 10, 1, image_size)
    assert parameters(model) == convolutions + linears
    assert model(torch.zeros(2, 1, image_size, image_size)).shape == (2, 10)


def test_small_cnn_counts_28_to_28874_and_8_to_5834():
    assert parameters(SmallCNN(10, 1, 28)) == 28_874
    assert parameters(SmallCNN(10, 1, 8)) == 5_834


@pytest.mark.parametrize(("num_classes", "expected"), [(10, 11_173_962), (100, 11_220_132)])
def test_cifar_resnet18_has_the_known_number_of_parameters(num_classes, expected):
    with torch.device("meta"):
        assert parameters(create_model("cifar_resnet18", num_classes, 3, 32)) == expected


def test_cifar_resnet50_differs_from_torchvisions_in_the_stem_only():
    with torch.device("meta"):
        cifar, imagenet = (create_model(name, 100, 3, 32) for name in ("cifar_resnet50", "resnet50"))
    assert parameters(imagenet) - parameters(cifar) == 64 * 3 * (7 * 7 - 3 * 3)


def test_cifar_stem_keeps_the_resolution_and_each_later_stage_halves_it():
    sides = {}
    with torch.device("meta"):
        model = create_model("cifar_resnet18", 10, 3, 32)
        for name in ("conv1", "maxpool", "layer1", "layer2", "layer3", "layer4"):
            getattr(model, name).register_forward_hook(
                lambda _, __, output, name=name: sides.update({name: tuple(output.shape[1:])})
            )
        assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    assert sides == {
        "conv1": (64, 32, 32),
        "maxpool": (64, 32, 32),
        "layer1": (64, 32, 32),
        "layer2": (128, 16, 16),
        "layer3": (256, 8, 8),
        "layer4": (512, 4, 4),
    }


def test_cifar_stem_is_initialised_as_torchvision_initialises_convolutions():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        weight = create_model("cifar_resnet18", 10, 3, 32).conv1.weight
    # He et al.: the variance is 2 / fan_out, with fan_out = 64 · 3 · 3; 1728 values.
    assert weight.std().item() == pytest.approx((2 / 576) ** 0.5, rel=0.06)
    assert weight.mean().item() == pytest.approx(0.0, abs=0.005)
    assert weight.abs().max().item() > 3 * (2 / 576) ** 0.5  # normal; a uniform one ends at √3 of these


def test_channels_of_the_images_are_those_of_the_stem():
    with torch.device("meta"):
        assert create_model("cifar_resnet18", 10, 1, 32).conv1.weight.shape == (64, 1, 3, 3)


def test_timm_gives_the_network_it_has_by_that_name():
    import timm

    model = create_model("timm:test_resnet", 7, 1, 32)
    assert type(model) is type(timm.create_model("test_resnet"))
    assert model(torch.zeros(2, 1, 32, 32)).shape == (2, 7)


@pytest.mark.parametrize(
    ("name", "channels", "size", "message"),
    [
        ("nothing", 3, 32, "arch must be small_cnn, cifar_resnet18, .* or timm:NAME, got 'nothing'"),
        ("timm:nothing", 3, 32, "arch: timm has no network 'nothing'"),
        ("resnet18", 1, 32, "arch resnet18 takes images of 3 channels, got 1"),
        ("small_cnn", 1, 4, "image_size must be at least 5 for small_cnn, got 4"),
    ],
)
def test_a_network_that_cannot_be_built_says_why(name, channels, size, message):
    with pytest.raises(ValueError, match=message):
        create_model(name, 10, channels, size)
