"""The kernel for packed spherical-Gaussian colours against plain torch. `shared.kernels` says what each test is for."""

from __future__ import annotations

import functools
import importlib.util
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import shared.kernels.packed_sg as module
import torch
import torch.nn.functional as F
from shared.kernels.packed_sg import BLOCK, C0, packed_sg, reference_packed_sg
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

NAMES = ("means", "centre", "base", "axes", "sharpness", "amplitudes")  # what has a gradient
Colours = Callable[..., Tensor]
fused = functools.partial(packed_sg, backend="triton")

# name: lobes of each Gaussian, what is particular
CASES: dict[str, tuple[list[int], str]] = {
    "one lobe": ([1], ""),
    "ragged": ([3, 0, 1, 2, 0, 0, 3, 1], ""),
    "no lobes": ([0, 0, 0], ""),
    "no Gaussians": ([], ""),
    "a whole block": ([1, 2] * (BLOCK // 2), ""),
    "several blocks": ([0, 3, 1, 2, 1] * (BLOCK // 2) + [0, 1, 3], ""),
    "one long list": ([1, 0, 17, 2], ""),
    "clamped": ([2, 0, 1, 3, 1, 2], "clamped"),
    "black and white": ([0, 0], "bounds"),
    "flat": ([2, 0, 1, 3], "flat"),
    "sharp": ([2, 0, 1, 3], "sharp"),
    "axes of any length": ([2, 0, 1, 3], "lengths"),
    "at the centre": ([2, 0, 1, 3], "centre"),
    "columns apart": ([2, 0, 1, 3], "transposed"),
    "rows apart": ([2, 0, 1, 3], "sliced"),
    "one row for all": ([2, 0, 1, 3], "expanded"),
}


def inputs_of(name: str) -> dict[str, Tensor]:
    counts, kind = CASES[name]
    generator = torch.Generator().manual_seed(list(CASES).index(name))
    normal = functools.partial(torch.randn, generator=generator)
    n, p = len(counts), sum(counts)
    inputs = {
        "means": normal(n, 3),
        "centre": torch.tensor([4.0, -3.0, 2.0]),
        "base": 0.5 * normal(n, 3),
        "axes": normal(p, 3),
        "sharpness": 2 * normal(p),
        "amplitudes": 0.3 * normal(p, 3),
        "offsets": torch.tensor([0, *counts]).cumsum(0),
        "weight": normal(n, 3),
    }
    if kind == "clamped":
        inputs["base"] *= 20
    if kind == "bounds":  # the first is exactly there, the other beyond
        inputs["base"] = torch.tensor([[-0.5, 0.5, -0.5], [0.51, -0.51, 9.0]]) / C0
    if kind == "flat":
        inputs["sharpness"][::2] = 0.0
    if kind == "sharp":
        inputs["sharpness"] = inputs["sharpness"] * 1e3
    if kind == "lengths":
        inputs["axes"] *= 10 ** torch.linspace(-4, 4, p)[:, None]
    if kind == "centre":
        inputs["means"][::2] = inputs["centre"]
    if kind == "transposed":
        inputs |= {key: t.T.contiguous().T for key, t in inputs.items() if t.ndim == 2}
    if kind == "sliced":
        inputs = {key: t.repeat_interleave(2, 0)[::2] for key, t in inputs.items()}
    if kind == "expanded":
        inputs |= {key: t[:1].expand_as(t) for key, t in inputs.items() if t.ndim == 2}
    return inputs


def evaluate(f: Colours, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the colours and the gradients of their weighted sum."""
    leaves = {name: inputs[name].detach().requires_grad_() for name in NAMES}
    colours = f(*leaves.values(), inputs["offsets"])
    grads = torch.autograd.grad(colours, list(leaves.values()), inputs["weight"])
    return {"colours": colours.detach()} | dict(zip(NAMES, grads, strict=True))


def in_double(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: t.double() if t.is_floating_point() else t for name, t in inputs.items()}


def arguments(inputs: dict[str, Tensor]) -> list[Tensor]:
    return [inputs[name] for name in (*NAMES, "offsets")]


def brute_force(inputs: dict[str, Tensor]) -> Tensor:
    """Add up the lobes of each Gaussian in Python, by the angle between axis and direction."""
    means, centre, base, axes, sharpness, amplitudes, offsets = (t.tolist() for t in arguments(inputs))
    colours = []
    for i, (place, units) in enumerate(zip(means, base, strict=True)):
        towards = [c - x for c, x in zip(centre, place, strict=True)]
        for p in range(offsets[i], offsets[i + 1]):
            length = math.hypot(*axes[p]) * math.hypot(*towards)
            dot = sum(m * v for m, v in zip(axes[p], towards, strict=True))
            fall = math.exp(abs(sharpness[p]) * ((dot / length if length else 0.0) - 1.0))
            units = [unit + a * fall for unit, a in zip(units, amplitudes[p], strict=True)]
        colours.append([min(max(0.5 + unit / (2 * math.sqrt(math.pi)), 0.0), 1.0) for unit in units])
    return torch.tensor(colours, dtype=torch.float64).view(-1, 3)


def naive(
    means: Tensor, centre: Tensor, base: Tensor, axes: Tensor, sharpness: Tensor, amplitudes: Tensor, counts: Tensor
) -> Tensor:
    """Compute the same of lobes that are padded to K, (N, K, ...): what a script would write."""
    towards = F.normalize(centre - means, dim=1)
    cosine = (F.normalize(axes, dim=2) * towards[:, None]).sum(2)
    active = torch.arange(axes.shape[1], device=axes.device) < counts[:, None]
    lobes = amplitudes * torch.exp(sharpness.abs() * (cosine - 1))[..., None] * active[..., None]
    return (0.5 + C0 * (base + lobes.sum(1))).clamp(0, 1)


def padded(t: Tensor, counts: Tensor) -> Tensor:
    """Spread packed rows (P, ...) over (N, K, ...), differentiably; what is empty is 1."""
    active = torch.arange(int(counts.max())) < counts[:, None]
    return t.new_ones(*active.shape, *t.shape[1:]).index_put((active,), t)


def through_padding(
    means: Tensor, centre: Tensor, base: Tensor, axes: Tensor, sharpness: Tensor, amplitudes: Tensor, offsets: Tensor
) -> Tensor:
    counts = offsets.diff()
    return naive(means, centre, base, *(padded(t, counts) for t in (axes, sharpness, amplitudes)), counts)


def unchecked(offsets: list[int]) -> dict[str, Tensor]:
    """Evaluate what the kernel makes of offsets that nothing checked, as on a GPU."""
    inputs = inputs_of("rows apart") | {"offsets": torch.tensor(offsets)}
    return evaluate(module._PackedSG.apply, inputs)


def kept_bytes() -> int:
    """Count the bytes that the kernel keeps for its backward beside its inputs, of 8 Gaussians and 10 lobes."""
    inputs = inputs_of("ragged")
    given = {t.data_ptr() for t in inputs.values()}
    kept: dict[int, int] = {}

    def pack(t: Tensor) -> Tensor:
        kept[t.data_ptr()] = t.nbytes
        return t

    inputs["means"].requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        fused(*arguments(inputs))
    return sum(size for place, size in kept.items() if place not in given)


class Largest(TorchDispatchMode):
    """Note the largest number of elements of any tensor that is made."""

    numel = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, Tensor):
                self.numel = max(self.numel, tensor.numel())
        return out


def main(results: str) -> None:
    """Evaluate the kernel on every case, in a process whose Triton interprets."""
    outputs: dict[str, Any] = {name: evaluate(fused, inputs_of(name)) for name in CASES}
    outputs["beyond"] = unchecked([0, 2, 9, 3, 6])
    outputs["below"] = unchecked([-2, 2, 2, 3, 6])
    outputs["kept"] = kept_bytes()
    torch.save(outputs, results)


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    pytest.importorskip("triton")
    results = tmp_path_factory.mktemp("interpreter") / "results.pt"
    command = [sys.executable, "-W", "ignore", __file__, str(results)]
    env = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.fail(f"the kernel does not run in Triton's interpreter:\n{done.stderr}", pytrace=False)
    return torch.load(results, weights_only=True)


def assert_close_to_double(actual: dict[str, Tensor], name: str) -> None:
    inputs = inputs_of(name)
    expected = evaluate(reference_packed_sg, in_double(inputs))
    # A cosine is off by a unit in its last place, and the exponent by that times the sharpness.
    sharpest = max([1.0, *inputs["sharpness"].abs().tolist()])
    for key, value in expected.items():
        assert actual[key].dtype == torch.float32
        atol = 2e-6 * sharpest * max([1.0, *value.abs().flatten().tolist()])
        torch.testing.assert_close({key: actual[key].double()}, {key: value}, rtol=0, atol=atol)


@pytest.mark.parametrize("name", CASES)
def test_interpreted_kernel_equals_the_reference_in_double(name: str, interpreted: dict[str, Any]) -> None:
    assert_close_to_double(interpreted[name], name)


@pytest.mark.parametrize("name", CASES)
def test_torch_path_in_float32_equals_the_reference_in_double(name: str) -> None:
    assert_close_to_double(evaluate(packed_sg, inputs_of(name)), name)


@pytest.mark.parametrize("name", CASES)
def test_torch_path_in_double_has_the_gradients_that_autograd_gives_the_reference(name: str) -> None:
    inputs = in_double(inputs_of(name))
    torch.testing.assert_close(evaluate(packed_sg, inputs), evaluate(reference_packed_sg, inputs))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_kernel_on_a_gpu_equals_the_reference_in_double() -> None:
    for name in CASES:
        actual = evaluate(fused, {key: t.cuda() for key, t in inputs_of(name).items()})
        assert_close_to_double({key: t.cpu() for key, t in actual.items()}, name)


@pytest.mark.parametrize(("offsets", "bad"), [("beyond", [1, 2]), ("below", [0])])
def test_offsets_that_the_kernel_cannot_check_give_their_gaussians_nan(
    offsets: str, bad: list[int], interpreted: dict[str, Any]
) -> None:
    actual = interpreted[offsets]
    assert actual["colours"].isnan().all(1).nonzero().flatten().tolist() == bad
    good = [i for i in range(4) if i not in bad]
    expected = {"beyond": [0, 2, 2, 3, 6], "below": [0, 0, 2, 3, 6]}[offsets]  # the good lists are in place
    if offsets == "below":
        good = [2, 3]  # Gaussian 1 has no lobes there
    values = evaluate(reference_packed_sg, inputs_of("rows apart") | {"offsets": torch.tensor(expected)})
    for key in ("colours", "means", "base"):
        torch.testing.assert_close(actual[key][good], values[key][good])
    assert all(actual[key].isfinite().all() for key in NAMES)


def test_kernel_keeps_a_byte_a_channel_for_its_backward(interpreted: dict[str, Any]) -> None:
    assert interpreted["kept"] == 8 * 3


@pytest.mark.slow
@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("one", [(), ("n",), ("n", "p")])
def test_kernels_compile_for_a_gpu_that_is_not_there(
    arch: int, one: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    triton = pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    target = triton.backends.compiler.GPUTarget("cuda", arch, 32)
    for kernel in module._kernels():
        # Triton makes a constant of an integer that is 1.
        constants = {"C0": C0, "TINY": module.TINY, "BLOCK": BLOCK} | dict.fromkeys(one, 1)
        types = {"offsets": "*i64", "free": "*u8", "n": "i32", "p": "i32"} | dict.fromkeys(constants, "constexpr")
        signature = {name: types.get(name, "*fp32") for name in kernel.arg_names}
        source = triton.compiler.ASTSource(kernel, signature, constants)
        binary = triton.compile(source, target=target, options=module.OPTIONS)
        assert f".target sm_{arch}" in binary.asm["ptx"]
        assert "atom." not in binary.asm["ptx"]
        assert "fma." not in binary.asm["ptx"]
        assert binary.asm["cubin"].startswith(b"\x7fELF")  # ptxas accepted it


@pytest.mark.parametrize("f", [packed_sg, reference_packed_sg])
@pytest.mark.parametrize("name", CASES)
def test_colours_are_those_of_a_loop_over_the_lobes(name: str, f: Colours) -> None:
    inputs = in_double(inputs_of(name))
    torch.testing.assert_close(f(*arguments(inputs)), brute_force(inputs), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "name", [name for name, case in CASES.items() if case[0] and case[1] not in ("bounds", "centre")]
)
def test_padded_lobes_agree(name: str) -> None:
    inputs = in_double(inputs_of(name))
    torch.testing.assert_close(evaluate(packed_sg, inputs), evaluate(through_padding, inputs))


def lone_lobe(degrees: float = 60.0, sharpness: float = 3.0) -> dict[str, Tensor]:
    """A Gaussian at the origin, seen from 5 above, whose lobe points so far from the camera."""
    angle = math.radians(degrees)
    inputs = {
        "means": torch.zeros(1, 3),
        "centre": torch.tensor([0.0, 0.0, 5.0]),
        "base": torch.tensor([[0.2, 0.0, -0.3]]),
        "axes": torch.tensor([[7 * math.sin(angle), 0.0, 7 * math.cos(angle)]]),
        "sharpness": torch.tensor([sharpness]),
        "amplitudes": torch.tensor([[0.5, -0.4, 1.0]]),
        "offsets": torch.tensor([0, 1]),
        "weight": torch.tensor([[1.0, 0.0, 0.0]]),
    }
    return in_double(inputs)


@pytest.mark.parametrize("degrees", [0.0, 60.0, 90.0, 180.0])
@pytest.mark.parametrize("sharpness", [3.0, -3.0])
def test_lone_lobe_falls_with_the_angle_to_the_camera(degrees: float, sharpness: float) -> None:
    fall = math.exp(3.0 * (math.cos(math.radians(degrees)) - 1.0))
    expected = [[0.5 + C0 * (0.2 + 0.5 * fall), 0.5 - C0 * 0.4 * fall, 0.5 + C0 * (-0.3 + fall)]]
    actual = packed_sg(*arguments(lone_lobe(degrees, sharpness)))
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-7)


def test_gradients_of_a_lone_lobe_at_60_degrees() -> None:
    e = math.exp(-1.5)  # cos 60 = 1/2
    slope = 3.0 * C0 * 0.5 * e  # by the cosine
    actual = evaluate(packed_sg, lone_lobe(60.0))
    sin, cos = math.sqrt(3) / 2, 0.5
    expected = {
        "means": [[-slope * sin / 5, 0.0, 0.0]],  # moving towards the axis turns the direction away from it
        "centre": [slope * sin / 5, 0.0, 0.0],
        "base": [[C0, 0.0, 0.0]],
        "axes": [[slope * (0.0 - cos * sin) / 7, 0.0, slope * (1.0 - cos * cos) / 7]],
        "sharpness": [-0.5 * C0 * 0.5 * e],
        "amplitudes": [[C0 * e, 0.0, 0.0]],
    }
    for name, value in expected.items():
        value = torch.tensor(value, dtype=torch.float64)
        torch.testing.assert_close(actual[name], value, rtol=0, atol=1e-7)


@pytest.mark.parametrize("f", [packed_sg, reference_packed_sg])
def test_gradients_are_those_of_finite_differences(f: Colours) -> None:
    inputs = in_double(inputs_of("ragged"))
    leaves = [inputs[name].requires_grad_() for name in NAMES]
    assert torch.autograd.gradcheck(f, (*leaves, inputs["offsets"]))


def test_reference_is_differentiable_twice_and_the_closed_form_says_that_it_is_not() -> None:
    inputs = in_double(inputs_of("one lobe"))
    leaves = [inputs[name].requires_grad_() for name in NAMES]
    assert torch.autograd.gradgradcheck(reference_packed_sg, (*leaves, inputs["offsets"]), fast_mode=True)
    loss = packed_sg(*leaves, inputs["offsets"]).square().sum()
    (grad,) = torch.autograd.grad(loss, leaves[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


def test_gaussians_without_lobes_have_their_clamped_base() -> None:
    base = torch.tensor([[0.0, 1.0, -1.0], [1.7, -1.7, 1.9], [-9.0, 9.0, 0.3]])
    inputs = inputs_of("no lobes") | {"base": base}
    expected = torch.tensor(
        [[0.5, 0.5 + C0, 0.5 - C0], [0.5 + 1.7 * C0, 0.5 - 1.7 * C0, 1.0], [0.0, 1.0, 0.5 + 0.3 * C0]]
    )
    actual = evaluate(packed_sg, inputs | {"weight": torch.ones(3, 3)})
    torch.testing.assert_close(actual["colours"], expected)
    torch.testing.assert_close(actual["base"], C0 * torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]))


@pytest.fixture(params=["torch", "reference", "triton"])
def evaluated(request: pytest.FixtureRequest, interpreted: dict[str, Any]) -> Callable[[str], dict[str, Tensor]]:
    """Evaluate a case, on each path in turn."""
    paths = {"torch": packed_sg, "reference": reference_packed_sg}
    if request.param == "triton":
        return interpreted.__getitem__
    return lambda name: evaluate(paths[request.param], inputs_of(name))


def test_channel_exactly_at_0_or_1_has_a_gradient_and_one_beyond_has_none(
    evaluated: Callable[[str], dict[str, Tensor]],
) -> None:
    actual = evaluated("black and white")
    assert actual["colours"].tolist() == [[0.0, 1.0, 0.0], [1.0, 0.0, 1.0]]
    weight = inputs_of("black and white")["weight"]
    torch.testing.assert_close(actual["base"], C0 * weight * torch.tensor([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]))


def test_lobe_of_sharpness_0_has_no_gradient_by_it(evaluated: Callable[[str], dict[str, Tensor]]) -> None:
    grad = evaluated("flat")["sharpness"]
    assert (grad[::2] == 0).all()
    assert (grad[1::2] != 0).all()


def test_gaussian_at_the_centre_does_not_move_and_its_lobes_have_cosine_0(
    evaluated: Callable[[str], dict[str, Tensor]],
) -> None:
    actual = evaluated("at the centre")
    inputs = inputs_of("at the centre")
    assert (actual["means"][[0, 2]] == 0).all()
    assert (actual["means"][3] != 0).all()
    inside = (actual["colours"] > 0) & (actual["colours"] < 1)
    fall = torch.exp(-inputs["sharpness"][:2].abs())[:, None]  # both lobes of Gaussian 0
    torch.testing.assert_close(actual["amplitudes"][:2], C0 * fall * (inputs["weight"] * inside)[0])


@pytest.mark.parametrize("name", NAMES)
def test_each_gradient_is_the_same_where_it_alone_is_asked_for(name: str) -> None:
    inputs = inputs_of("ragged")
    leaves = {key: inputs[key].detach().requires_grad_(key == name) for key in NAMES}
    (grad,) = torch.autograd.grad(packed_sg(**leaves, offsets=inputs["offsets"]), leaves[name], inputs["weight"])
    torch.testing.assert_close(grad, evaluate(packed_sg, inputs)[name], rtol=0, atol=0)


@pytest.mark.parametrize("f", [packed_sg, reference_packed_sg])
def test_runs_on_two_threads_give_the_same_bits(f: Colours) -> None:
    inputs = dict(zip((*NAMES, "offsets"), benchmark_inputs(12_000, "cpu"), strict=True))
    inputs["weight"] = torch.randn(12_000, 3, generator=torch.Generator().manual_seed(1))
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        first = evaluate(f, inputs)
        for _ in range(2):
            torch.testing.assert_close(evaluate(f, inputs), first, rtol=0, atol=0)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("f", [packed_sg, reference_packed_sg])
def test_one_long_list_is_not_padded_for(f: Colours) -> None:
    counts = [0] * 99 + [50]
    inputs = inputs_of("no lobes") | {
        "means": torch.zeros(100, 3), "base": torch.zeros(100, 3), "axes": torch.ones(50, 3),
        "sharpness": torch.ones(50), "amplitudes": torch.zeros(50, 3), "weight": torch.ones(100, 3),
        "offsets": torch.tensor([0, *counts]).cumsum(0),
    }  # fmt: skip
    with Largest() as largest:
        evaluate(f, inputs)
    assert largest.numel == 3 * 100


def test_arguments_are_left_as_they_were() -> None:
    inputs = inputs_of("ragged")
    before = {name: t.clone() for name, t in inputs.items()}
    evaluate(packed_sg, inputs)["colours"].zero_()
    torch.testing.assert_close(inputs, before, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"means": torch.zeros(3)}, r"means must have shape \(N, 3\), got \(3,\)"),
        ({"means": torch.zeros(2, 4)}, r"means must have shape \(N, 3\), got \(2, 4\)"),
        ({"axes": torch.zeros(3, 2)}, r"axes must have shape \(P, 3\), got \(3, 2\)"),
        ({"centre": torch.zeros(1, 3)}, r"centre must have shape \(3,\), got \(1, 3\)"),
        ({"base": torch.zeros(3, 3)}, r"base must have shape \(2, 3\), got \(3, 3\)"),
        ({"sharpness": torch.zeros(3, 1)}, r"sharpness must have shape \(3,\), got \(3, 1\)"),
        ({"amplitudes": torch.zeros(2, 3)}, r"amplitudes must have shape \(3, 3\), got \(2, 3\)"),
        ({"offsets": torch.tensor([0, 3])}, r"offsets must have shape \(3,\), got \(2,\)"),
        (
            {"means": torch.zeros(2, 3).half()},
            r"means must have type torch.float32 or torch.float64, got torch.float16",
        ),
        ({"base": torch.zeros(2, 3).double()}, r"base must have the type of means, torch.float32, got torch.float64"),
        ({"offsets": torch.tensor([0, 1, 3]).int()}, r"offsets must have type torch.int64, got torch.int32"),
        ({"axes": torch.zeros(3, 3, device="meta")}, r"axes must lie on the device of means, cpu, got meta"),
        (
            {"offsets": torch.empty(3, dtype=torch.int64, device="meta")},
            r"offsets must lie on the device of means, cpu",
        ),
        ({"offsets": torch.tensor([1, 2, 3])}, r"offsets must go from 0 to the 3 lobes, got 1 to 3"),
        ({"offsets": torch.tensor([0, 1, 2])}, r"offsets must go from 0 to the 3 lobes, got 0 to 2"),
        ({"offsets": torch.tensor([0, 4, 3])}, r"offsets must not fall, got 3 after 4"),
        ({"backend": "cuda"}, r"backend must be 'auto', 'torch' or 'triton', got 'cuda'"),
    ],
)
def test_bad_input_is_named(change: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {
        "means": torch.zeros(2, 3), "centre": torch.ones(3), "base": torch.zeros(2, 3), "axes": torch.ones(3, 3),
        "sharpness": torch.ones(3), "amplitudes": torch.zeros(3, 3), "offsets": torch.tensor([0, 1, 3]),
    }  # fmt: skip
    for backend in ("torch", "triton"):  # the inputs are looked at before Triton is
        with pytest.raises(ValueError, match=message):
            packed_sg(**({"backend": backend} | good | change))
    if "backend" not in change:
        with pytest.raises(ValueError, match=message):
            reference_packed_sg(**(good | change))


def test_triton_where_it_cannot_run_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = inputs_of("ragged")
    with pytest.raises(ValueError, match=r"computes in float32, got torch.float64"):
        fused(*arguments(in_double(inputs)))
    monkeypatch.setattr(module, "_triton_is_installed", lambda: True)
    monkeypatch.setattr(module, "_interpreted", lambda: False)
    with pytest.raises(ValueError, match=r"needs CUDA tensors, got means on cpu"):
        fused(*arguments(inputs))


def test_module_loads_and_falls_back_to_torch_where_triton_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)  # an import of it now fails
    spec = importlib.util.spec_from_file_location("copied_kernel", str(module.__file__))
    assert spec is not None
    assert spec.loader is not None
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    inputs = in_double(inputs_of("ragged"))
    torch.testing.assert_close(copy.packed_sg(*arguments(inputs)), brute_force(inputs))
    with pytest.raises(ValueError, match="package triton, which is not installed"):
        copy.packed_sg(*arguments(inputs_of("ragged")), backend="triton")


@pytest.mark.parametrize("f", [naive, reference_packed_sg, packed_sg], ids=["padded", "reference", "torch"])
@pytest.mark.parametrize("n", [4_000, 100_000])
def test_speed_forward_and_backward_on_the_cpu(benchmark: Any, n: int, f: Colours) -> None:
    benchmark(step, f, leaves_of(f, n, "cpu"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("f", [naive, reference_packed_sg, fused], ids=["padded", "reference", "triton"])
@pytest.mark.parametrize("n", [100_000, 2_000_000])
def test_speed_forward_and_backward_on_the_gpu(benchmark: Any, n: int, f: Colours) -> None:
    leaves = leaves_of(f, n, "cuda")

    def synchronised() -> None:
        step(f, leaves)
        torch.cuda.synchronize()

    benchmark(synchronised)


def step(f: Colours, leaves: tuple[Tensor, ...]) -> None:
    colours = f(*leaves)
    torch.autograd.grad(colours, [t for t in leaves if t.requires_grad], torch.ones_like(colours))


def benchmark_inputs(n: int, device: str) -> tuple[Tensor, ...]:
    """Make n Gaussians with 0 to 3 lobes each, 1.5 in the mean."""
    generator = torch.Generator().manual_seed(0)
    normal = functools.partial(torch.randn, generator=generator)
    counts = torch.randint(4, (n,), generator=generator)
    p = int(counts.sum())
    inputs = (
        normal(n, 3), torch.tensor([4.0, -3.0, 2.0]), 0.5 * normal(n, 3), normal(p, 3), normal(p), 0.3 * normal(p, 3),
        F.pad(counts.cumsum(0), (1, 0)),
    )  # fmt: skip
    return tuple(t.to(device) for t in inputs)


def leaves_of(f: Colours, n: int, device: str) -> tuple[Tensor, ...]:
    """Prepare what f takes; the place of the camera needs no gradient."""
    means, centre, base, *lobes, offsets = benchmark_inputs(n, "cpu")
    if f is naive:
        offsets = offsets.diff()
        lobes = [padded(t, offsets) for t in lobes]
    means, base, *lobes = (t.to(device).requires_grad_() for t in (means, base, *lobes))
    return means, centre.to(device), base, *lobes, offsets.to(device)


if __name__ == "__main__":
    main(*sys.argv[1:])
