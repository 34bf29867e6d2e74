"""Pictures and films: bytes, files as other programs read them, and the colours of errors."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from matplotlib import colormaps
from megs2.pictures import check_film, heat_map, save_film, save_png, strip, to_bytes
from PIL import Image


def test_bytes_are_clamped_and_rounded():
    values = torch.tensor([-0.5, 0.0, 0.4 / 255, 0.6 / 255, 1.0, 1.7])
    found = to_bytes(values.view(1, 2, 3))
    assert found.dtype == np.uint8
    assert found.ravel().tolist() == [0, 0, 0, 1, 255, 255]


@pytest.mark.parametrize("shape", [(3, 4), (3, 4, 1), (3, 4, 4), (0, 4, 3), (2, 3, 4, 3)])
def test_what_is_no_image_is_refused(shape):
    with pytest.raises(ValueError, match=r"expected \(H, W, 3\)"):
        to_bytes(torch.zeros(shape))


def test_an_image_with_values_that_are_no_numbers_is_refused():
    image = torch.zeros(2, 2, 3)
    image[0, 1, 2] = torch.nan
    with pytest.raises(ValueError, match="1 values that are no numbers"):
        to_bytes(image)


def test_a_png_is_read_back_pixel_by_pixel(tmp_path):
    image = torch.rand(5, 7, 3, generator=torch.Generator().manual_seed(0))
    save_png(tmp_path / "new" / "a.png", image)
    with Image.open(tmp_path / "new" / "a.png") as found:
        assert (found.format, found.mode, found.size) == ("PNG", "RGB", (7, 5))
        assert np.array_equal(np.asarray(found), (image * 255).round().numpy())


def test_a_failed_film_leaves_the_old_one_and_nothing_else(tmp_path):
    path = tmp_path / "a.gif"
    path.write_bytes(b"old")
    with pytest.raises(ValueError, match="one size"):
        save_film(path, [torch.zeros(4, 4, 3), torch.zeros(4, 5, 3)])
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_gif_has_each_frame_for_its_time_and_repeats(tmp_path):
    shades = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    save_film(tmp_path / "a.gif", [shade.expand(5, 7, 3) for shade in shades], fps=20)
    with Image.open(tmp_path / "a.gif") as film:
        assert (film.n_frames, film.size, film.info["loop"]) == (3, (7, 5), 0)
        for number, shade in enumerate(shades):
            film.seek(number)
            assert film.info["duration"] == 50
            assert np.array_equal(np.asarray(film.convert("RGB"))[2, 3], (shade * 255).numpy())


@pytest.mark.parametrize(
    ("name", "frames", "fps", "reason"),
    [
        ("a.gif", 0, 30, "at least one frame"), ("a.avi", 1, 30, r"\.gif or \.mp4"), ("a.gif", 1, 60, "fps is 60"),
        ("a.gif", 1, 0, "fps is 0"),
    ],
)  # fmt: skip
def test_a_film_that_cannot_be_is_refused(tmp_path, name, frames, fps, reason):
    with pytest.raises(ValueError, match=reason):
        save_film(tmp_path / name, [torch.zeros(2, 2, 3)] * frames, fps)
    assert not list(tmp_path.iterdir())


def test_an_mp4_without_pyav_names_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ValueError, match=r"install megs2\[video\], or write a \.gif"):
        check_film(tmp_path / "a.mp4")


class Recorder:
    """Stands for PyAV: keeps what the encoder is given."""

    def __init__(self):
        self.frames = []
        self.stream = SimpleNamespace(encode=lambda frame=None: [frame])
        self.VideoFrame = SimpleNamespace(from_ndarray=lambda array, format: (format, array))

    def open(self, buffer, mode, format):
        self.buffer, self.opened = buffer, (mode, format)
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.buffer.write(b"film")

    def add_stream(self, codec, rate):
        self.codec, self.rate = codec, rate
        return self.stream

    def mux(self, packets):
        self.frames += packets


def test_an_mp4_of_odd_size_loses_its_last_row_and_column_and_the_encoder_is_flushed(tmp_path, monkeypatch):
    av = Recorder()
    monkeypatch.setitem(sys.modules, "av", av)
    image = torch.rand(5, 3, 3, generator=torch.Generator().manual_seed(0))
    save_film(tmp_path / "a.mp4", [image, image / 2], fps=60)
    assert (av.opened, av.codec, av.rate) == (("w", "mp4"), "libx264", 60)
    assert (av.stream.width, av.stream.height, av.stream.pix_fmt) == (2, 4, "yuv420p")
    *frames, last = av.frames
    assert last is None
    assert [form for form, _ in frames] == ["rgb24", "rgb24"]
    for (_, found), wanted in zip(frames, (image, image / 2), strict=True):
        assert np.array_equal(found, to_bytes(wanted)[:4, :2])
    assert (tmp_path / "a.mp4").read_bytes() == b"film"


def test_a_real_mp4_has_as_many_frames(tmp_path):
    av = pytest.importorskip("av")
    save_film(tmp_path / "a.mp4", [torch.full((33, 35, 3), shade) for shade in (0.0, 0.5, 1.0)], fps=10)
    with av.open(tmp_path / "a.mp4") as film:
        shades = [frame.to_ndarray(format="rgb24").mean() / 255 for frame in film.decode(video=0)]
    assert shades == pytest.approx([0.0, 0.5, 1.0], abs=0.03)


def test_a_heat_map_runs_from_0_to_high_and_stays_at_its_ends():
    ends = np.array(colormaps["viridis"]([0.0, 1.0]))[:, :3]
    found = heat_map(torch.tensor([[-1.0, 0.0, 2.0, 5.0]]), 2.0)
    np.testing.assert_allclose(found[0].numpy(), ends[[0, 0, 1, 1]], atol=1e-6)
    brightness = heat_map(torch.linspace(0, 1, 50)[None], 1.0)[0] @ torch.tensor([0.2126, 0.7152, 0.0722])
    assert (brightness.diff() > 0).all()


@pytest.mark.parametrize("high", [0.0, -1.0, float("nan")])
def test_a_heat_map_without_range_is_refused(high):
    with pytest.raises(ValueError, match="high must be positive"):
        heat_map(torch.zeros(2, 2), high)


def test_a_strip_is_truth_then_drawing_then_their_mean_absolute_error():
    truth = torch.full((2, 3, 3), 0.5)
    drawn = truth.clone()
    drawn[1, 2] = torch.tensor([0.8, 0.2, 0.5])
    drawn[0, 0] = 1.5  # shown, and judged, as 1
    found = strip(truth, drawn, high=0.4)
    assert found.shape == (2, 9, 3)
    assert torch.equal(found[:, :3], truth)
    assert torch.equal(found[:, 3:6], drawn.clamp(max=1))
    error = torch.tensor([[0.5, 0.0, 0.0], [0.0, 0.0, 0.2]])
    torch.testing.assert_close(found[:, 6:], heat_map(error, 0.4))


def test_a_strip_of_pictures_of_two_sizes_is_refused():
    with pytest.raises(ValueError, match=r"shapes \(2, 2, 3\) and \(2, 3, 3\)"):
        strip(torch.zeros(2, 2, 3), torch.zeros(2, 3, 3))
