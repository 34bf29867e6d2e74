"""The rotary kernel against plain torch. `shared.kernels` says what each kind of test is for."""

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
import shared.kernels.rotary as module
import torch
import torch.nn.functional as F
from shared.kernels.rotary import MAX_PAIRS, reference_rotary, rotary
from torch import Tensor

fused = functools.partial(rotary, backend="triton")

# name: shape of x, leading shape of the angles, type of x, what is particular
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], torch.dtype, str]] = {
    "one pair": ((2,), (), torch.float32, ""),
    "one angle for all rows": ((5, 7, 6), (), torch.float32, ""),
    "no power of two": ((3, 5, 24), (5,), torch.float32, ""),
    "several tiles of rows": ((2, 3000, 6), (3000,), torch.float32, ""),
    "several tiles of pairs": ((3, 2 * MAX_PAIRS + 2), (3,), torch.float32, ""),
    "heads share angles": ((2, 3, 4, 5, 8), (2, 1, 4, 1), torch.float32, ""),
    "heads lie between tokens": ((2, 3, 4, 5, 8), (2, 1, 4, 1), torch.float32, "permuted"),
    "x repeated by the caller": ((2, 3, 4, 5, 8), (2, 1, 4, 1), torch.float32, "expanded"),
    "x repeated by the angles": ((2, 3, 1, 5, 8), (2, 1, 4, 1), torch.float32, ""),
    "angles with more axes": ((5, 8), (3, 2, 1), torch.float32, ""),
    "five axes apart": ((2, 3, 2, 3, 2, 4), (2, 1, 2, 1, 2), torch.float32, "permuted"),
    "columns apart": ((5, 10), (5,), torch.float32, "transposed"),
    "rows of odd length": ((5, 10), (5,), torch.float32, "sliced"),
    "rows from an odd place": ((5, 10), (5,), torch.float32, "offset"),
    "no rows": ((2, 0, 8), (0,), torch.float32, ""),
    "large angles": ((4, 6), (4,), torch.float32, "large"),
    "float16": ((2, 3, 5, 24), (5,), torch.float16, ""),
    "bfloat16": ((2, 3, 5, 24), (5,), torch.bfloat16, ""),
}


def inputs_of(name: str) -> dict[str, Tensor]:
    shape, leading, dtype, kind = CASES[name]
    generator = torch.Generator().manual_seed(list(CASES).index(name))
    full = (*torch.broadcast_shapes(shape[:-1], leading), shape[-1])  # type: ignore[no-untyped-call]
    x = torch.randn(shape, generator=generator).to(dtype)
    angles = 3 * torch.randn(*leading, shape[-1] // 2, generator=generator)
    weight = torch.randn(full, generator=generator).to(dtype)
    if kind == "permuted":
        x, weight = (t.transpose(1, -2).contiguous().transpose(1, -2) for t in (x, weight))
    if kind == "expanded":
        x, weight = x[:, :, :1].expand(shape), weight[:, :1].expand(full)
    if kind == "transposed":
        x, angles, weight = (t.T.contiguous().T for t in (x, angles, weight))
    if kind == "sliced":
        x, angles, weight = (F.pad(t, (0, 1), value=99.0)[:, :-1] for t in (x, angles, weight))
    if kind == "offset":
        x, angles, weight = (F.pad(t.flatten(), (1, 0))[1:].view(t.shape) for t in (x, angles, weight))
    if kind == "large":
        angles = 1e4 * angles
    return {"x": x, "angles": angles, "weight": weight}


def evaluate(f: Callable[[Tensor, Tensor], Tensor], inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the result, the gradient of its weighted sum, and that of the gradient's own squares."""
    x = inputs["x"].detach().requires_grad_()
    weight = inputs["weight"].detach().requires_grad_()
    y = f(x, inputs["angles"])
    (grad,) = torch.autograd.grad(y, x, weight, create_graph=True)
    (second,) = torch.autograd.grad(grad, weight, grad.detach())
    return {"y": y.detach(), "grad": grad.detach(), "second": second}


def in_double(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: t.double() for name, t in inputs.items()}


def far_apart() -> dict[str, Tensor]:
    """Rotate rows that lie 2^29 numbers from each other, by a right angle. Only their pages are touched."""
    far = 2**29
    storage = torch.empty(4 * far + 128, dtype=torch.float16)
    outputs = {}
    # One leading axis is the kernel's last; of four that cannot be merged, the far one is its first.
    for name, shape, strides in (("last", (5, 2), (far, 1)), ("first", (5, 2, 2, 2, 2), (far, 64, 16, 4, 1))):
        x = storage.as_strided(shape, strides)
        for row in range(5):
            x[row] = torch.tensor([row + 1.0, 10.0])
        outputs[name] = fused(x, torch.tensor([math.pi / 2])).view(5, -1, 2)[:, -1]
    return outputs


def kept_elements() -> int:
    """Count the numbers in the storages kept for the backward, for 4 x 6 rows of 8 under 6 x 4 angles."""
    kept: dict[int, int] = {}

    def pack(t: Tensor) -> Tensor:
        kept[t.data_ptr()] = t.untyped_storage().nbytes() // t.element_size()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        fused(torch.ones(4, 6, 8, requires_grad=True), torch.ones(6, 4))
    return sum(kept.values())


def main(cases: str, results: str) -> None:
    """Evaluate the kernel on every case, in a process whose Triton interprets."""
    inputs = torch.load(cases, weights_only=True)
    outputs: dict[str, Any] = {name: evaluate(fused, inputs[name]) for name in CASES}
    module.NARROW_ROWS = 0
    outputs["wide"] = evaluate(fused, inputs["heads lie between tokens"])
    outputs["far apart"] = far_apart()
    outputs["kept"] = kept_elements()
    torch.save(outputs, results)


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    pytest.importorskip("triton")
    folder = tmp_path_factory.mktemp("interpreter")
    cases, results = folder / "cases.pt", folder / "results.pt"
    torch.save({name: inputs_of(name) for name in CASES}, cases)
    command = [sys.executable, "-W", "ignore", __file__, str(cases), str(results)]
    env = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.fail(f"the kernel does not run in Triton's interpreter:\n{done.stderr}", pytrace=False)
    return torch.load(results, weights_only=True)


def assert_close_to_double(actual: dict[str, Tensor], name: str) -> None:
    inputs = inputs_of(name)
    dtype = CASES[name][2]
    expected = evaluate(reference_rotary, in_double(inputs))
    for key, value in expected.items():
        assert actual[key].dtype == dtype
        # Each of the two steps behind `second` rounds to half precision once.
        rtol = 0.0 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps
        scale = max([1.0, *value.abs().flatten().tolist()])
        atol = 2e-6 * scale if dtype == torch.float32 else torch.finfo(dtype).eps * scale
        torch.testing.assert_close({key: actual[key].double()}, {key: value}, rtol=rtol, atol=atol)


@pytest.mark.parametrize("name", CASES)
def test_interpreted_kernel_equals_the_reference_in_double(name: str, interpreted: dict[str, Any]) -> None:
    assert_close_to_double(interpreted[name], name)


@pytest.mark.parametrize("name", CASES)
def test_reference_in_the_type_of_x_equals_itself_in_double(name: str) -> None:
    assert_close_to_double(evaluate(reference_rotary, inputs_of(name)), name)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_kernel_on_a_gpu_equals_the_reference_in_double() -> None:
    for name in CASES:
        actual = evaluate(fused, {key: t.cuda() for key, t in inputs_of(name).items()})
        assert_close_to_double({key: t.cpu() for key, t in actual.items()}, name)


def test_kernel_is_the_same_where_a_rows_number_needs_64_bits(interpreted: dict[str, Any]) -> None:
    torch.testing.assert_close(interpreted["wide"], interpreted["heads lie between tokens"], rtol=0, atol=0)


def test_kernel_reaches_rows_beyond_two_to_the_31_numbers(interpreted: dict[str, Any]) -> None:
    expected = torch.tensor([[-10.0, row] for row in range(1, 6)], dtype=torch.float16)
    torch.testing.assert_close(interpreted["far apart"], {"last": expected, "first": expected})


def test_kernel_keeps_the_angles_alone_for_its_backward(interpreted: dict[str, Any]) -> None:
    assert interpreted["kept"] == 6 * 4


@pytest.mark.slow
@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("variant", ["one pair", "shared angles", "wide, inverse"])
def test_kernel_compiles_for_a_gpu_that_is_not_there(
    arch: int, dtype: str, variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    triton = pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    target = triton.backends.compiler.GPUTarget("cuda", arch, 32)
    wide = variant == "wide, inverse"
    pairs = 1 if variant == "one pair" else 16
    constants: dict[str, Any] = {"INVERSE": wide, "WIDE": wide, "ROWS": module.TILE // pairs, "PAIRS": pairs}
    if not wide:  # Triton makes a constant of an integer that is 1
        constants |= {"x_column": 1, "a_column": 1}
    if variant == "one pair":
        constants |= {"half": 1, "n1": 1, "n2": 1}
    pointers = {"x": f"*{dtype}", "angles": "*fp32", "y": f"*{dtype}"}
    types = pointers | {"rows": "i64" if wide else "i32"} | dict.fromkeys(constants, "constexpr")
    kernel = module._compiled()
    signature = {name: types.get(name, "i32") for name in kernel.arg_names}
    source = triton.compiler.ASTSource(kernel, signature, constants)
    binary = triton.compile(source, target=target, options={"num_warps": 4})
    assert f".target sm_{arch}" in binary.asm["ptx"]
    assert "cos.approx" not in binary.asm["ptx"]  # which is wrong for large angles
    assert binary.asm["cubin"].startswith(b"\x7fELF")  # ptxas accepted it


def angles_of(position: float, d_h: int = 4, base: float = 1000.0) -> Tensor:
    return position * base ** (-torch.arange(0, d_h, 2, dtype=torch.float64) / d_h)


@pytest.mark.parametrize(
    ("query", "key", "score"),
    [(0, 0, 4.9), (7, 7, 4.9), (3, 5, 9.31668554), (10, 12, 9.31668554), (5, 3, 4.70616350)],
)
def test_score_of_a_worked_example_depends_on_the_lag_alone(query: int, key: int, score: float) -> None:
    q = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    k = torch.tensor([0.5, -1.0, 2.0, 0.1], dtype=torch.float64)
    actual = rotary(q, angles_of(query)) @ rotary(k, angles_of(key))
    assert actual.item() == pytest.approx(score, abs=5e-9)


def test_right_angles_turn_the_first_feature_of_a_pair_into_the_second() -> None:
    x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    actual = rotary(x, torch.tensor([math.pi / 2, -math.pi / 2]))
    torch.testing.assert_close(actual, torch.tensor([-2.0, 1.0, 4.0, -3.0]))


def test_lengths_are_kept() -> None:
    inputs = inputs_of("heads share angles")
    y = rotary(inputs["x"], inputs["angles"])
    torch.testing.assert_close(y.norm(dim=-1), inputs["x"].norm(dim=-1))


@pytest.mark.parametrize("name", ["columns apart", "rows of odd length", "x repeated by the angles"])
def test_rotation_is_a_product_with_the_block_diagonal_matrix_of_the_angles(name: str) -> None:
    inputs = in_double(inputs_of(name))
    x, angles = inputs["x"], inputs["angles"]
    cos, sin = torch.diag_embed(angles.cos()), torch.diag_embed(angles.sin())
    matrix = angles.new_zeros(*angles.shape, 2, angles.shape[-1], 2)
    matrix[..., 0, :, 0] = matrix[..., 1, :, 1] = cos
    matrix[..., 0, :, 1], matrix[..., 1, :, 0] = -sin, sin
    matrix = matrix.flatten(-4, -3).flatten(-2)
    torch.testing.assert_close(rotary(x, angles), (matrix @ x[..., None])[..., 0])


def test_gradients_by_x_and_angles_are_those_of_finite_differences() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 1, 3, 6, dtype=torch.float64, generator=generator).requires_grad_()
    angles = torch.randn(2, 1, 3, dtype=torch.float64, generator=generator).requires_grad_()
    assert torch.autograd.gradcheck(rotary, (x, angles))
    assert torch.autograd.gradgradcheck(rotary, (x, angles))


def test_gradient_by_the_angles_is_the_formula_in_the_docstring() -> None:
    inputs = in_double(inputs_of("no power of two"))
    angles, weight = inputs["angles"].expand(3, 5, 12).clone().requires_grad_(), inputs["weight"]
    y = rotary(inputs["x"], angles)
    (grad,) = torch.autograd.grad(y, angles, weight)
    torch.testing.assert_close(grad, weight[..., 1::2] * y[..., 0::2] - weight[..., 0::2] * y[..., 1::2])


def test_angles_in_double_turn_float32_exactly() -> None:
    theta = torch.tensor([2e7 + 0.5], dtype=torch.float64)  # float32 has no such number
    actual = rotary(torch.tensor([1.0, 0.0]), theta)
    torch.testing.assert_close(actual, torch.tensor([math.cos(2e7 + 0.5), math.sin(2e7 + 0.5)]))


def test_arguments_are_left_as_they_were() -> None:
    inputs = inputs_of("heads share angles")
    before = {name: t.clone() for name, t in inputs.items()}
    rotary(inputs["x"], inputs["angles"]).zero_()
    torch.testing.assert_close(inputs, before, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.tensor(1.0)}, r"x must have shape \(\.\.\., d_h\).*got \(\)"),
        ({"x": torch.zeros(3, 5)}, r"x must have shape \(\.\.\., d_h\) with d_h even.*got \(3, 5\)"),
        ({"x": torch.zeros(3, 0)}, r"x must have shape .* at least 2, got \(3, 0\)"),
        ({"x": torch.zeros(3, 4, dtype=torch.int64)}, r"x must have a floating type, got torch.int64"),
        ({"x": torch.zeros(3, 4, dtype=torch.complex64)}, r"x must have a floating type, got torch.complex64"),
        ({"angles": torch.tensor(1.0)}, r"angles must have shape \(\.\.\., 2\), got \(\)"),
        ({"angles": torch.zeros(3, 4)}, r"angles must have shape \(\.\.\., 2\), got \(3, 4\)"),
        ({"angles": torch.zeros(3, 1)}, r"angles must have shape \(\.\.\., 2\), got \(3, 1\)"),
        ({"angles": torch.zeros(2, 2)}, r"axes of angles before the last .* those of x, \(3,\), got \(2,\)"),
        ({"angles": torch.zeros(3, 2, dtype=torch.int64)}, r"angles must have a floating type, got torch.int64"),
        ({"angles": torch.zeros(3, 2, device="meta")}, r"angles must lie on the device of x, cpu, got meta"),
        ({"backend": "cuda"}, r"backend must be 'auto', 'torch' or 'triton', got 'cuda'"),
    ],
)
def test_bad_input_is_named(change: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {"x": torch.zeros(3, 4), "angles": torch.zeros(3, 2)}
    for backend in ("torch", "triton"):  # the inputs are looked at before Triton is
        with pytest.raises(ValueError, match=message):
            rotary(**({"backend": backend} | good | change))


def test_triton_where_it_cannot_run_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    x, angles = torch.zeros(3, 4), torch.zeros(3, 2)
    for bad in ((x.double(), angles), (x, angles.double())):
        with pytest.raises(ValueError, match=r"computes in float32, got float64"):
            rotary(*bad, backend="triton")
    with pytest.raises(ValueError, match=r"gives angles no gradient, got angles that require one"):
        rotary(x, angles.clone().requires_grad_(), backend="triton")
    monkeypatch.setattr(module, "_triton_is_installed", lambda: True)
    monkeypatch.setattr(module, "_interpreted", lambda: False)
    with pytest.raises(ValueError, match=r"needs CUDA tensors, got x on cpu"):
        rotary(x, angles, backend="triton")


def test_module_loads_and_falls_back_to_torch_where_triton_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)  # an import of it now fails
    spec = importlib.util.spec_from_file_location("copied_kernel", str(module.__file__))
    assert spec is not None
    assert spec.loader is not None
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    x, angles = torch.tensor([1.0, 2.0]), torch.tensor([math.pi])
    torch.testing.assert_close(copy.rotary(x, angles), torch.tensor([-1.0, -2.0]))
    with pytest.raises(ValueError, match="package triton, which is not installed"):
        copy.rotary(x, angles, backend="triton")


def naive(x: Tensor, angles: Tensor) -> Tensor:
    """Compute the same from strided halves: what a model file would write."""
    cos, sin, even, odd = angles.cos(), angles.sin(), x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


@pytest.mark.parametrize("name", CASES)
def test_strided_halves_agree(name: str) -> None:
    inputs = in_double(inputs_of(name))
    torch.testing.assert_close(evaluate(reference_rotary, inputs), evaluate(naive, inputs))


@pytest.mark.parametrize("f", [naive, reference_rotary], ids=["naive", "torch"])
@pytest.mark.parametrize("atoms", [9, 45])
def test_speed_forward_and_backward_on_the_cpu(benchmark: Any, atoms: int, f: Any) -> None:
    benchmark(first_order, f, *benchmark_inputs(16, atoms, "cpu"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("f", [naive, reference_rotary, fused], ids=["naive", "torch", "triton"])
@pytest.mark.parametrize("atoms", [9, 45])
def test_speed_forward_and_backward_on_the_gpu(benchmark: Any, atoms: int, f: Any) -> None:
    inputs = benchmark_inputs(512, atoms, "cuda")

    def step() -> None:
        first_order(f, *inputs)
        torch.cuda.synchronize()

    benchmark(step)


def first_order(f: Callable[[Tensor, Tensor], Tensor], x: Tensor, angles: Tensor) -> None:
    y = f(x, angles)
    torch.autograd.grad(y, x, torch.ones_like(y))


def benchmark_inputs(batch: int, atoms: int, device: str) -> tuple[Tensor, Tensor]:
    """Make queries of 8 heads and 8 times, and angles that heads and atoms share."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(batch, 8, 8, atoms, 32, generator=generator).to(device).requires_grad_()
    return x, torch.randn(batch, 1, 8, 1, 16, generator=generator).to(device)


if __name__ == "__main__":
    main(*sys.argv[1:])
