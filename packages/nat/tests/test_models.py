"""The networks: their published sizes, what is inside a `Classifier`, and that all of each is trained."""

import pytest
import timm
import torch
from nat.models import STATISTICS, Classifier, WideBlock, WideResNet, create_model, small_cnn
from torch import nn

SMALL = {"digits_cnn": (1, 8, 64), "mnist_cnn": (1, 28, 64), "resnet18": (3, 32, 512), "vit_small": (3, 32, 384)}


def images(channels, size, n=2):
    return torch.rand(n, channels, size, size, generator=torch.Generator().manual_seed(0))


def build(arch):
    channels, size, _ = SMALL[arch]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return create_model(arch, 7, channels, size)


def count(model):
    return sum(parameter.numel() for parameter in model.parameters())


def on_meta(arch, **options):
    with torch.device("meta"):
        return create_model(arch, **options)


@pytest.mark.parametrize("arch", SMALL)
def test_logits_are_the_head_applied_to_the_features_of_the_normalised_image(arch):
    channels, size, width = SMALL[arch]
    model, x = build(arch).eval(), images(channels, size)
    with torch.no_grad():
        features, logits = model.features(x), model(x)
        # CIFAR-10's statistics, or none for the grey digits.
        if channels == 3:
            mean, std = (torch.tensor(v)[:, None, None] for v in ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)))
            by_hand = model.body((x - mean) / std)
        else:
            by_hand = model.body(x)
    assert features.shape == (2, width)
    assert logits.shape == (2, 7)
    torch.testing.assert_close(features, by_hand)
    torch.testing.assert_close(logits, features @ model.head.weight.T + model.head.bias)


def test_an_image_at_the_dataset_mean_enters_the_body_as_zero_and_one_deviation_above_as_one():
    model = Classifier(nn.Flatten(), 3, 2, 3)
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in STATISTICS[3])
    torch.testing.assert_close(model.features(mean), torch.zeros(1, 3))
    torch.testing.assert_close(model.features(mean + std), torch.ones(1, 3))


def test_wrn34_10_has_the_46_million_parameters_of_its_paper():
    """Zagoruyko & Komodakis print 46.2M; summed here block by block for depth 34 = 6 * 5 + 4 and widening 10."""
    total, inputs = 3 * 16 * 9, 16
    for width in (160, 320, 640):
        for _ in range(5):
            shortcut = 0 if inputs == width else inputs * width
            total += 2 * inputs + 9 * inputs * width + 2 * width + 9 * width * width + shortcut
            inputs = width
    total += 2 * 640 + 640 * 10 + 10
    assert total == 46_160_474
    assert count(on_meta("wrn34_10")) == total


def test_cifar_resnet18_is_the_published_one_but_for_its_stem_and_head():
    """He et al.: 11,689,512 parameters with a 7 x 7 stem and 1,000 classes; here a 3 x 3 stem and 10."""
    imagenet = 11_689_512
    stem = 64 * 3 * (7 * 7 - 3 * 3)
    head = 513 * (1000 - 10)
    assert count(on_meta("resnet18")) == imagenet - stem - head == 11_173_962


def test_vit_small_has_the_parameters_of_deit_small():
    """Touvron et al. print 22.1M with 1,000 classes: width 384, 12 blocks, MLP of 4 times the width."""
    d, tokens = 384, (224 // 16) ** 2 + 1
    block = 2 * 2 * d + (3 * d * d + 3 * d) + (d * d + d) + (8 * d * d + 5 * d)
    total = (3 * 16 * 16 * d + d) + d + tokens * d + 12 * block + 2 * d
    assert total + 1000 * (d + 1) == 22_050_664
    assert count(on_meta("vit_small", num_classes=100)) == total + 100 * (d + 1)


def test_cifar_resnet18_keeps_the_resolution_until_its_second_stage():
    body, seen = build("resnet18").body, {}
    for name in ("conv1", "maxpool", "layer1", "layer2", "layer3", "layer4"):
        getattr(body, name).register_forward_hook(lambda _, __, out, name=name: seen.update({name: out.shape[-1]}))
    body(images(3, 32))
    assert seen == {"conv1": 32, "maxpool": 32, "layer1": 32, "layer2": 16, "layer3": 8, "layer4": 4}


def test_cifar_resnet18_beyond_its_stem_is_the_network_of_timm():
    ours, theirs = build("resnet18").body.eval(), timm.create_model("resnet18", num_classes=0).eval()
    theirs.conv1, theirs.maxpool = ours.conv1, nn.Identity()
    theirs.load_state_dict(ours.state_dict())
    x = images(3, 32)
    torch.testing.assert_close(ours(x), theirs(x))


@pytest.mark.parametrize(("inputs", "outputs", "stride"), [(4, 4, 1), (4, 6, 1), (4, 6, 2)])
def test_a_wide_block_whose_last_convolution_is_zero_is_its_shortcut(inputs, outputs, stride):
    block, x = WideBlock(inputs, outputs, stride).eval(), images(inputs, 8) - 0.5
    nn.init.zeros_(block.conv2.weight)
    block.bn1.running_mean.fill_(0.1)
    if inputs == outputs:
        expected = x
    else:
        activated = ((x - 0.1) / (1 + 1e-5) ** 0.5).clamp(min=0)[:, :, ::stride, ::stride]
        expected = torch.einsum("nchw,dc->ndhw", activated, block.shortcut.weight[:, :, 0, 0])
    torch.testing.assert_close(block(x), expected)


def test_wide_resnet_halves_the_resolution_twice_and_averages_what_remains():
    net, x = WideResNet(10, 2).eval(), images(3, 32)
    with torch.no_grad():
        maps = net.layers(x)
        assert maps.shape == (2, 128, 8, 8)
        torch.testing.assert_close(net(x), maps.sum((2, 3)) / 64)


@pytest.mark.parametrize("depth", [33, 35])
def test_wide_resnet_refuses_a_depth_that_does_not_divide(depth):
    with pytest.raises(ValueError, match=f"depth must be 6 n [+] 4, got {depth}"):
        WideResNet(depth, 1)


@pytest.mark.parametrize("size", [1, 2, 5, 7, 8, 9, 27, 28])
@pytest.mark.parametrize(("kernel", "strides"), [(3, (1, 2)), (5, (2, 2))])
def test_small_cnn_fits_images_of_any_side(size, kernel, strides):
    net = small_cnn(1, size, kernel, strides)
    side = len(range(0, len(range(0, size, strides[0])), strides[1]))  # each convolution keeps every stride-th pixel
    assert net[5].in_features == 32 * side**2
    assert net(images(1, size)).shape == (2, 64)


@pytest.mark.parametrize("arch", [*SMALL, "wrn34_10"])
def test_every_parameter_of_a_network_gets_a_gradient(arch):
    if arch == "wrn34_10":  # the real one, on images that are small enough for a test
        model, x = create_model(arch), images(3, 8, n=4)
    else:
        model, x = build(arch), images(*SMALL[arch][:2], n=4)
    for module in model.modules():  # timm starts the last norm of a block at zero, which stops gradients at first
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
    torch.nn.functional.cross_entropy(model(x), torch.tensor([0, 1, 2, 3])).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"arch": "resnet19"}, "arch must be one of digits_cnn, .*vit_small, got 'resnet19'"),
        ({"arch": "resnet18", "in_channels": 2}, "in_channels must be 1 or 3, got 2"),
    ],
)
def test_unknown_networks_and_channels_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        create_model(**options)
