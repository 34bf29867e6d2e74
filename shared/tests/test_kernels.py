"""The fused kernels against plain torch. `shared.kernels` says what each kind of test is for."""

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
import shared.kernels.cross_entropy_kl as module
import torch
import torch.nn.functional as F
from shared.kernels.cross_entropy_kl import MAX_BLOCK, cross_entropy_kl, reference_cross_entropy_kl
from torch import Tensor

Z = torch.tensor([[4.0, 1.0, 0.0]], dtype=torch.float64)
R = torch.tensor([[3.0, 2.0, -1.0]], dtype=torch.float64)
Y = torch.tensor([0])

# name: rows, columns, temperature, type, what is particular
CASES: dict[str, tuple[int, int, float, torch.dtype, str]] = {
    "ten classes": (7, 10, 1.0, torch.float32, ""),
    "softened": (7, 10, 4.0, torch.float32, ""),
    "sharpened": (4, 37, 0.5, torch.float32, ""),
    "one class": (3, 1, 2.0, torch.float32, ""),
    "one row": (1, 1000, 4.0, torch.float32, ""),
    "no rows": (0, 10, 1.0, torch.float32, ""),
    "a whole block": (2, MAX_BLOCK, 1.0, torch.float32, ""),
    "one more than a block": (2, MAX_BLOCK + 1, 4.0, torch.float32, ""),
    "five blocks, rising": (3, 20_000, 4.0, torch.float32, "rising"),
    "float16": (4, 1000, 4.0, torch.float16, ""),
    "bfloat16": (4, 5000, 2.0, torch.bfloat16, ""),
    "extreme": (6, 10, 1.0, torch.float32, "extreme"),
    "extreme, softened": (6, 5000, 20.0, torch.float32, "extreme"),
    "columns apart": (5, 33, 2.0, torch.float32, "transposed"),
    "rows apart": (5, 33, 2.0, torch.float32, "sliced"),
    "one reference for all": (5, 33, 2.0, torch.float32, "expanded"),
    "divergence unused": (5, 33, 2.0, torch.float32, "unused"),
}


def inputs_of(name: str) -> dict[str, Tensor]:
    n, k, _, dtype, kind = CASES[name]
    generator = torch.Generator().manual_seed(list(CASES).index(name))
    z, r = 4 * torch.randn(2, n, k, generator=generator)
    weights = torch.randn(2, n, generator=generator)
    labels = torch.randint(k, (n,), generator=generator)
    if kind == "rising":  # so that both maxima move from block to block, and not together
        z, r = z + torch.linspace(-50, 50, k), r + torch.linspace(-20, 30, k)
    if kind == "extreme":
        z, r = z + 1e4 * z.sign(), r + 1e4 * r.sign()
    z, r = z.to(dtype), r.to(dtype)
    if kind == "transposed":
        z, r = z.T.contiguous().T, r.T.contiguous().T
    if kind == "sliced":
        z, r = F.pad(z, (2, 3), value=99.0)[:, 2:-3], r.repeat_interleave(2, 0)[::2]
        weights, labels = weights.repeat_interleave(2, 1)[:, ::2], labels.repeat_interleave(2)[::2]
    if kind == "expanded":
        r, weights = r[:1].expand(n, k), weights[:, :1].expand(2, n)
    inputs = {"logits": z, "reference": r, "labels": labels, "cross_entropy_weight": weights[0]}
    return inputs if kind == "unused" else inputs | {"kl_weight": weights[1]}


def evaluate(
    f: Callable[..., tuple[Tensor, Tensor]], inputs: dict[str, Tensor], temperature: float
) -> dict[str, Tensor]:
    """Return both results and the gradient of their weighted sum."""
    z = inputs["logits"].detach().requires_grad_()
    cross_entropy, kl = f(z, inputs["reference"], inputs["labels"], temperature)
    roots = {"cross_entropy": cross_entropy, "kl": kl}
    weighted = {name: root for name, root in roots.items() if f"{name}_weight" in inputs}
    weights = [inputs[f"{name}_weight"].to(root.dtype) for name, root in weighted.items()]
    torch.autograd.backward(list(weighted.values()), weights)
    assert z.grad is not None
    return {"cross_entropy": cross_entropy.detach(), "kl": kl.detach(), "grad": z.grad}


def in_double(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: x.double() if x.is_floating_point() else x for name, x in inputs.items()}


fused = functools.partial(cross_entropy_kl, backend="triton")


def saved_elements() -> int:
    """Count what the kernel keeps for its backward, without its inputs, at 6 x 50."""
    z, r = torch.randn(2, 6, 50, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(6)
    saved: list[Tensor] = []

    def pack(x: Tensor) -> Tensor:
        saved.append(x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        fused(z.requires_grad_(), r, labels, 2.0)
    inputs = {x.data_ptr() for x in (z, r, labels)}
    return sum(x.numel() for x in saved if x.data_ptr() not in inputs)


def bad_label() -> dict[str, Tensor]:
    """Evaluate what the kernel makes of labels that nothing checked, as on a GPU: rows 0, 1, 2 are bad."""
    z = torch.zeros(4, 3, requires_grad=True)
    labels = torch.tensor([-100, 3, 2**40, 2])
    cross_entropy, _ = module._CrossEntropyKL.apply(z, torch.zeros(4, 3), labels, 1.0)
    cross_entropy.sum().backward()
    assert z.grad is not None
    return {"cross_entropy": cross_entropy.detach(), "grad": z.grad}


def main(cases: str, results: str) -> None:
    """Evaluate the kernel on every case, in a process whose Triton interprets."""
    inputs = torch.load(cases, weights_only=True)
    outputs: dict[str, Any] = {name: evaluate(fused, inputs[name], CASES[name][2]) for name in CASES}
    z = torch.randn(5, MAX_BLOCK + 9, generator=torch.Generator().manual_seed(0))
    equal = {"logits": z, "reference": z, "labels": torch.arange(5), "kl_weight": torch.ones(5)}
    outputs["equal rows"] = evaluate(fused, equal, 4.0)
    outputs["bad label"] = bad_label()
    outputs["saved"] = saved_elements()
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
    _, _, temperature, dtype, _ = CASES[name]
    inputs = inputs_of(name)
    expected = evaluate(reference_cross_entropy_kl, in_double(inputs), temperature)
    z, r = (inputs[x].double() for x in ("logits", "reference"))
    centred = [x - x.amax(1, keepdim=True) for x in (z, r)]
    largest = max([1.0, *(float(-x.min()) for x in centred if len(x))]) / min(1.0, temperature)
    for key, value in expected.items():
        in_half = key == "grad" and dtype != torch.float32
        assert actual[key].dtype == (dtype if in_half else torch.float32)
        rtol = torch.finfo(dtype).eps if in_half else 0.0
        torch.testing.assert_close({key: actual[key].double()}, {key: value}, rtol=rtol, atol=2e-6 * largest)


@pytest.mark.parametrize("name", CASES)
def test_interpreted_kernel_equals_the_reference_in_double(name: str, interpreted: dict[str, Any]) -> None:
    assert_close_to_double(interpreted[name], name)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_kernel_on_a_gpu_equals_the_reference_in_double() -> None:
    for name, (_, _, temperature, _, _) in CASES.items():
        actual = evaluate(fused, {key: x.cuda() for key, x in inputs_of(name).items()}, temperature)
        assert_close_to_double({key: x.cpu() for key, x in actual.items()}, name)


@pytest.mark.slow
@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("columns", ["one", "few", "many"])
def test_kernels_compile_for_a_gpu_that_is_not_there(
    arch: int, dtype: str, columns: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    triton = pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    target = triton.backends.compiler.GPUTarget("cuda", arch, 32)
    block = {"one": 1, "few": 16, "many": MAX_BLOCK}[columns]
    constants = {"BLOCK": block}
    if columns == "one":  # Triton makes a constant of an integer that is 1
        constants |= {"K": 1, "logits_stride": 1, "reference_stride": 1}
    types = {"labels": "*i64", "inverse_temperature": "fp32"}
    types |= dict.fromkeys(("K", "logits_stride", "reference_stride"), "i32")
    types |= dict.fromkeys(("logits", "reference", "logits_grad"), f"*{dtype}")
    types |= dict.fromkeys(constants, "constexpr")
    for kernel in module._kernels():
        signature = {name: types.get(name, "*fp32") for name in kernel.arg_names}
        source = triton.compiler.ASTSource(kernel, signature, constants)
        binary = triton.compile(source, target=target, options={"num_warps": max(1, min(8, block // 256))})
        assert f".target sm_{arch}" in binary.asm["ptx"]
        assert binary.asm["cubin"].startswith(b"\x7fELF")  # ptxas accepted it


def test_kernel_gives_exactly_zero_where_the_networks_agree(interpreted: dict[str, Any]) -> None:
    assert interpreted["equal rows"]["kl"].tolist() == [0.0] * 5
    assert not interpreted["equal rows"]["grad"].any()


def test_kernel_keeps_five_numbers_per_row_for_its_backward(interpreted: dict[str, Any]) -> None:
    assert interpreted["saved"] == 6 * 5


def test_kernel_makes_a_label_out_of_range_nan_in_its_row_only(interpreted: dict[str, Any]) -> None:
    expected = torch.tensor([torch.nan, torch.nan, torch.nan, math.log(3)])
    torch.testing.assert_close(interpreted["bad label"]["cross_entropy"], expected, equal_nan=True)
    grad = interpreted["bad label"]["grad"]
    assert grad[:3].isnan().all()
    torch.testing.assert_close(grad[3], torch.tensor([1 / 3, 1 / 3, -2 / 3]))


@pytest.mark.parametrize(("temperature", "kl"), [(1.0, 0.1674535), (4.0, 0.0256800)])
def test_cross_entropy_and_divergence_of_a_worked_example(temperature: float, kl: float) -> None:
    expected = torch.tensor([[0.0658839], [kl]], dtype=torch.float64)
    actual = torch.stack(cross_entropy_kl(Z, R, Y, temperature))
    torch.testing.assert_close(actual, expected, rtol=0, atol=5e-8)


def test_divergence_is_of_the_logits_from_the_reference_and_not_reversed() -> None:
    assert cross_entropy_kl(R, Z, Y)[1].item() == pytest.approx(0.2700971, abs=5e-8)


def test_reference_gradient_is_that_of_finite_differences() -> None:
    generator = torch.Generator().manual_seed(0)
    z, r = torch.randn(2, 3, 5, dtype=torch.float64, generator=generator)
    labels = torch.tensor([0, 4, 2])
    f = functools.partial(cross_entropy_kl, reference=r, labels=labels, temperature=4.0)
    assert torch.autograd.gradcheck(f, z.requires_grad_())
    assert torch.autograd.gradgradcheck(f, z)


def test_reference_gradient_is_the_formula_in_the_docstring() -> None:
    z, t = Z.clone().requires_grad_(), 4.0
    cross_entropy, kl = cross_entropy_kl(z, R, Y, t)
    p, q = (Z / t).softmax(-1), (R / t).softmax(-1)
    (grad,) = torch.autograd.grad(kl.sum(), z)
    torch.testing.assert_close(grad, p * ((p / q).log() - kl.detach()) / t)
    (grad,) = torch.autograd.grad(cross_entropy.sum(), z)
    torch.testing.assert_close(grad, Z.softmax(-1) - torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64))


def test_uniform_prediction_costs_log_k_and_diverges_by_the_references_mean_surprise() -> None:
    r = torch.tensor([[0.0, 1.0, 2.0, 5.0]], dtype=torch.float64)
    cross_entropy, kl = cross_entropy_kl(torch.zeros_like(r), r, torch.tensor([3]))
    assert cross_entropy.item() == pytest.approx(math.log(4))
    assert kl.item() == pytest.approx(math.log(1 + math.e + math.e**2 + math.e**5) - 2 - math.log(4))


def test_half_precision_on_the_torch_path_accumulates_in_float32() -> None:
    assert_close_to_double(evaluate(cross_entropy_kl, inputs_of("float16"), 4.0), "float16")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logits": torch.zeros(3)}, r"logits must have shape \(N, K\).*got \(3,\)"),
        ({"logits": torch.zeros(2, 0)}, r"logits must have shape \(N, K\).*got \(2, 0\)"),
        ({"logits": torch.zeros(2, 3, dtype=torch.int64)}, r"logits must have a floating type.*int64"),
        ({"reference": torch.zeros(1, 3)}, r"reference must have the shape of logits.*got \(1, 3\)"),
        ({"reference": torch.zeros(2, 3, dtype=torch.bool)}, r"reference must have a floating type.*bool"),
        ({"reference": torch.zeros(2, 3, device="meta")}, r"reference must lie on the device.*meta"),
        ({"reference": torch.zeros(2, 3, requires_grad=True)}, r"reference must not require a gradient"),
        ({"labels": torch.zeros(3, dtype=torch.int64)}, r"labels must have shape \(2,\), got \(3,\)"),
        ({"labels": torch.zeros(2)}, r"labels must have type torch.int64, got torch.float32"),
        ({"labels": torch.tensor([0, 3])}, r"labels must lie in \[0, 3\), got 3"),
        ({"labels": torch.tensor([-100, 0])}, r"labels must lie in \[0, 3\), got -100"),
        ({"temperature": 0.0}, r"temperature must be positive and finite, got 0.0"),
        ({"temperature": -1.0}, r"temperature must be positive and finite, got -1.0"),
        ({"temperature": float("inf")}, r"temperature must be positive and finite, got inf"),
        ({"temperature": float("nan")}, r"temperature must be positive and finite, got nan"),
        ({"backend": "cuda"}, r"backend must be 'auto', 'torch' or 'triton', got 'cuda'"),
    ],
)
def test_bad_input_is_named(change: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {
        "logits": torch.zeros(2, 3),
        "reference": torch.zeros(2, 3),
        "labels": torch.tensor([0, 2]),
    }
    assert cross_entropy_kl(**good)[1].tolist() == [0.0, 0.0]
    for backend in ("torch", "triton"):  # the inputs are looked at before Triton is
        with pytest.raises(ValueError, match=message):
            cross_entropy_kl(**({"backend": backend} | good | change))


def test_triton_where_it_cannot_run_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"computes in float32, got float64"):
        cross_entropy_kl(Z, R, Y, backend="triton")
    monkeypatch.setattr(module, "_triton_is_installed", lambda: True)
    monkeypatch.setattr(module, "_interpreted", lambda: False)
    with pytest.raises(ValueError, match=r"needs CUDA tensors, got logits on cpu"):
        cross_entropy_kl(Z.float(), R.float(), Y, backend="triton")


def test_module_loads_and_falls_back_to_torch_where_triton_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)  # an import of it now fails
    spec = importlib.util.spec_from_file_location("copied_kernel", str(module.__file__))
    assert spec is not None
    assert spec.loader is not None
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    assert copy.cross_entropy_kl(Z, R, Y)[1].item() == pytest.approx(0.1674535, abs=5e-8)
    with pytest.raises(ValueError, match="package triton, which is not installed"):
        copy.cross_entropy_kl(Z.float(), R.float(), Y, backend="triton")


def naive(z: Tensor, r: Tensor, labels: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Compute the same from torch's own losses: what a training script would write."""
    log_p, log_q = F.log_softmax(z / temperature, -1), F.log_softmax(r / temperature, -1)
    kl = F.kl_div(log_q, log_p, reduction="none", log_target=True).sum(-1)
    return F.cross_entropy(z, labels, reduction="none"), kl


def test_torchs_own_losses_agree() -> None:
    inputs = in_double(inputs_of("softened"))
    expected = evaluate(naive, inputs, 4.0)
    torch.testing.assert_close(evaluate(reference_cross_entropy_kl, inputs, 4.0), expected)


@pytest.mark.parametrize("f", [naive, reference_cross_entropy_kl], ids=["naive", "torch"])
@pytest.mark.parametrize(("n", "k"), [(256, 10), (256, 1000)])
def test_speed_forward_and_backward_on_the_cpu(benchmark: Any, n: int, k: int, f: Any) -> None:
    benchmark(evaluate, f, benchmark_inputs(n, k, "cpu"), 4.0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("f", [naive, fused], ids=["naive", "triton"])
@pytest.mark.parametrize(("n", "k"), [(1024, 10), (1024, 1000), (4096, 50_000)])
def test_speed_forward_and_backward_on_the_gpu(benchmark: Any, n: int, k: int, f: Any) -> None:
    inputs = benchmark_inputs(n, k, "cuda")

    def step() -> None:
        evaluate(f, inputs, 4.0)
        torch.cuda.synchronize()

    benchmark(step)


def benchmark_inputs(n: int, k: int, device: str) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    z, r = torch.randn(2, n, k, generator=generator)
    inputs = {"logits": z, "reference": r, "labels": torch.randint(k, (n,), generator=generator)}
    inputs |= {"cross_entropy_weight": torch.ones(n), "kl_weight": torch.ones(n)}
    return {name: x.to(device) for name, x in inputs.items()}


if __name__ == "__main__":
    main(*sys.argv[1:])
