"""Splits, and that an evaluation meets each image once."""

import pytest
import torch
from megs2.data import Megs2Data


def made(**options):
    data = Megs2Data(**options)
    data.setup()
    return data


def test_the_three_parts_share_no_image_and_lose_none():
    parts = made(val_fraction=0.25).parts
    assert {name: len(part) for name, part in parts.items()} == {"val": 300, "train": 900, "test": 597}
    assert sorted(index for part in parts.values() for index in part.indices) == list(range(1797))


def test_the_splits_do_not_depend_on_the_seed():
    assert made(seed=0).parts["test"].indices == made(seed=1).parts["test"].indices


def test_pixels_span_the_unit_interval():
    images = torch.cat([x for x, _ in made().test_dataloader()])
    assert (images.min(), images.max()) == (0, 1)


def test_an_evaluation_meets_each_of_7_images_once_at_batch_size_2():
    data = made(eval_batch_size=2)
    data.parts["test"].indices = data.parts["test"].indices[:7]
    batches = [labels for _, labels in data.test_dataloader()]
    assert max(map(len, batches)) == 2
    assert torch.cat(batches).tolist() == [int(data.parts["test"][i][1]) for i in range(7)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"eval_batch_size": -1}, "eval_batch_size must be at least 1, got -1"),
        ({"val_fraction": 1.0}, r"val_fraction must lie in \(0, 1\), got 1.0"),
    ],
)
def test_an_option_out_of_range_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Megs2Data(**options)
