"""The kernel for neighbours within graphs against plain torch. `shared.kernels` says what each kind of test is for."""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import shared.kernels.segment_knn as module
import torch
import torch.nn.functional as F
from shared.kernels.segment_knn import KEYS, MAX_K, QUERIES, reference_segment_knn, segment_knn
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

fused = functools.partial(segment_knn, backend="triton")

# name: sizes, d, k, type, what is particular. Features are small integers, whose squares and sums are exact, unless
# they are normal; so there are many ties.
CASES: dict[str, tuple[list[int], int, int, torch.dtype, str]] = {
    "one point each": ([1, 1, 1], 3, 2, torch.float32, ""),
    "fewer points than k": ([3, 0, 1, 5, 0], 3, 9, torch.float32, ""),
    "themselves alone": ([4, 30], 3, 1, torch.float32, ""),
    "ties": ([20, 7, 25], 2, 5, torch.float32, ""),
    "equal points": ([20, 7], 4, 6, torch.float32, "equal"),
    "several blocks": ([2 * KEYS + 9, 18, QUERIES + 1], 1, 7, torch.float32, ""),
    "whole blocks": ([QUERIES, KEYS, 2 * QUERIES], 3, 5, torch.float32, ""),
    "nearer in every block": ([3 * KEYS], 1, 3, torch.float32, "line"),
    "many features": ([40, 3], 19, 6, torch.float32, "normal"),
    "k of the registers": ([MAX_K + 6, 9], 3, MAX_K, torch.float32, "normal"),
    "no power of two": ([33, 50], 11, 13, torch.float32, "normal"),
    "no features": ([5, 3], 0, 4, torch.float32, ""),
    "no points": ([0, 0], 3, 2, torch.float32, ""),
    "no graphs": ([], 3, 2, torch.float32, ""),
    "columns apart": ([20, 7], 5, 4, torch.float32, "transposed"),
    "rows apart": ([20, 7], 5, 4, torch.float32, "sliced"),
    "infinite squares": ([9, 4], 2, 6, torch.float32, "far"),
    "not a number": ([9, 4], 2, 6, torch.float32, "nan"),
    "float16": ([20, 7], 5, 4, torch.float16, ""),
    "bfloat16": ([20, 7], 5, 4, torch.bfloat16, ""),
}
EXACT = [name for name, case in CASES.items() if case[4] not in ("normal", "far", "nan")]


def inputs_of(name: str) -> tuple[Tensor, Tensor, int]:
    sizes, d, k, dtype, kind = CASES[name]
    generator = torch.Generator().manual_seed(list(CASES).index(name))
    n = sum(sizes)
    x = torch.randint(-3, 4, (n, d), generator=generator).to(dtype)
    if kind == "equal":
        x = torch.ones_like(x)
    if kind == "line":
        x = -torch.arange(n, dtype=dtype)[:, None].square()
    if kind == "normal":
        x = torch.randn(n, d, generator=generator)
    if kind == "far":
        x = 1e25 * x
    if kind == "nan":
        x.view(torch.int32)[[2, 5, 9], 1] = torch.tensor([2**31 - 1, -1, 0x7FC00000]).int()  # the greatest, with a sign
    if kind == "transposed":
        x = x.T.contiguous().T
    if kind == "sliced":
        x = F.pad(x.repeat_interleave(2, 0), (2, 1), value=99.0)[::2, 2:-1]
    return x, torch.tensor(sizes, dtype=torch.int64), k


def brute_force(x: Tensor, sizes: Tensor, k: int) -> Tensor:
    """Sort the points of each graph for each of its points, in Python."""
    found, start = [], 0
    for size in sizes.tolist():
        points = x[start : start + size].double().tolist()
        for q, a in enumerate(points):
            distances = [
                (p != q, sum((s - t) ** 2 for s, t in zip(a, b, strict=True)), p) for p, b in enumerate(points)
            ]
            nearest = [start + p for _, _, p in sorted(distances)][:k]
            found.append(nearest + [-1] * (k - len(nearest)))
        start += size
    return torch.tensor(found, dtype=torch.int64).view(-1, k)


def alone(f: Callable[..., Tensor], x: Tensor, sizes: Tensor, k: int) -> Tensor:
    """Find the neighbours of each graph by a call of its own."""
    parts, start = [], 0
    for points in x.split(sizes.tolist()):
        found = f(points, torch.tensor([len(points)]), k)
        parts.append(found.where(found < 0, found + start))
        start += len(points)
    return torch.cat(parts)


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
    outputs = {name: fused(*inputs_of(name)) for name in CASES}
    outputs["alone"] = alone(fused, *inputs_of("no power of two"))
    x, _, k = inputs_of("ties")
    for name, sizes in (("too many", [20, 33]), ("too few", [20, 7]), ("negative", [60, -8])):
        outputs[name] = module._launch(x, torch.tensor(sizes), k)
    in_order = module._programs
    module._programs = lambda sizes, points: in_order(sizes, points).flip(0)
    outputs["backwards"] = fused(*inputs_of("ties"))
    torch.save(outputs, results)


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    pytest.importorskip("triton")
    results = tmp_path_factory.mktemp("interpreter") / "results.pt"
    command = [sys.executable, "-W", "ignore", __file__, str(results)]
    env = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.fail(f"the kernel does not run in Triton's interpreter:\n{done.stderr}", pytrace=False)
    return torch.load(results, weights_only=True)


@pytest.mark.parametrize("name", CASES)
def test_interpreted_kernel_finds_what_the_reference_does(name: str, interpreted: dict[str, Tensor]) -> None:
    assert interpreted[name].tolist() == reference_segment_knn(*inputs_of(name)).tolist()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_kernel_on_a_gpu_finds_what_the_reference_does() -> None:
    for name in CASES:
        x, sizes, k = inputs_of(name)
        actual = fused(x.cuda(), sizes.cuda(), k)
        assert actual.tolist() == reference_segment_knn(x, sizes, k).tolist(), name


def test_kernel_finds_the_same_for_a_graph_alone(interpreted: dict[str, Tensor]) -> None:
    assert interpreted["alone"].tolist() == interpreted["no power of two"].tolist()


def test_programs_write_only_their_own_graphs_rows(interpreted: dict[str, Tensor]) -> None:
    assert interpreted["backwards"].tolist() == interpreted["ties"].tolist()


def test_programs_share_the_points_of_each_graph_and_those_in_excess_have_none() -> None:
    expected = [[0, 0, 20], [QUERIES, 0, 20], [20, 20, 21]]
    *programs, excess = module._programs(torch.tensor([20, 0, 1]), 21).tolist()
    assert programs == expected
    assert excess[1] == excess[2]


@pytest.mark.parametrize("sizes", ["too many", "too few", "negative"])
def test_kernel_finds_nothing_where_sizes_that_it_cannot_check_do_not_fit(
    sizes: str, interpreted: dict[str, Tensor]
) -> None:
    assert (interpreted[sizes] == -1).all()


@pytest.mark.slow
@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("k", [1, 7, MAX_K])
def test_kernel_compiles_for_a_gpu_that_is_not_there(
    arch: int, dtype: str, k: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    triton = pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    target = triton.backends.compiler.GPUTarget("cuda", arch, 32)
    constants = {"QUERIES": QUERIES, "KEYS": KEYS, "FEATURES": module.FEATURES, "SLOTS": module._slots(k)}
    if k == 1:  # Triton makes a constant of an integer that is 1
        constants |= {"k": 1, "n": 1}
    types = {"points": f"*{dtype}", "programs": "*i64", "best_keys": "*i64"} | dict.fromkeys(constants, "constexpr")
    kernel = module._compiled()
    signature = {name: types.get(name, "i32") for name in kernel.arg_names}
    source = triton.compiler.ASTSource(kernel, signature, constants)
    binary = triton.compile(source, target=target, options={"num_warps": 4})
    assert f".target sm_{arch}" in binary.asm["ptx"]
    assert binary.asm["cubin"].startswith(b"\x7fELF")  # ptxas accepted it


def test_neighbours_of_a_worked_example() -> None:
    x = torch.tensor([[0.0], [3.0], [1.0], [3.0], [10.0], [10.0]])
    expected = [[0, 2, 1], [1, 3, 2], [2, 0, 1], [3, 1, 2], [4, 5, -1], [5, 4, -1]]
    assert segment_knn(x, torch.tensor([4, 2]), 3).tolist() == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", EXACT)
def test_reference_finds_what_sorting_in_python_does(name: str, dtype: torch.dtype) -> None:
    x, sizes, k = inputs_of(name)
    actual = reference_segment_knn(x if x.dtype != torch.float32 else x.to(dtype), sizes, k)
    assert actual.tolist() == brute_force(x, sizes, k).tolist()


def test_reference_in_double_tells_points_apart_that_float32_does_not() -> None:
    x = torch.tensor([[1.0], [1.0 + 2e-9], [1.0 + 1e-9]], dtype=torch.float64)
    assert segment_knn(x, torch.tensor([3]), 3)[0].tolist() == [0, 2, 1]
    assert segment_knn(x.float(), torch.tensor([3]), 3)[0].tolist() == [0, 1, 2]


def test_half_precision_is_compared_in_float32() -> None:
    x = torch.tensor([[300.0], [0.0], [1.0]], dtype=torch.float16)  # 300^2 is infinite in float16
    assert segment_knn(x, torch.tensor([3]), 3)[0].tolist() == [0, 2, 1]


def test_reference_finds_the_same_for_a_graph_alone() -> None:
    x, sizes, k = inputs_of("no power of two")
    assert alone(segment_knn, x, sizes, k).tolist() == segment_knn(x, sizes, k).tolist()


def test_reference_holds_no_matrix_of_the_whole_batch() -> None:
    x, sizes = torch.randn(400, 2, generator=torch.Generator().manual_seed(0)), torch.full((100,), 4)
    with Largest() as largest:
        segment_knn(x, sizes, 3)
    assert largest.numel == 400 * 3


def test_reference_holds_a_few_rows_of_a_large_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    x, sizes, k = inputs_of("several blocks")
    expected = segment_knn(x, sizes, k)
    monkeypatch.setattr(module, "CHUNK", 1000)
    with Largest() as largest:
        actual = segment_knn(x, sizes, k)
    assert actual.tolist() == expected.tolist()
    assert largest.numel <= max(1000, k * len(x))


def test_points_need_no_gradient_and_are_left_as_they_were() -> None:
    x, sizes, k = inputs_of("ties")
    before = x.clone()
    assert not segment_knn(x.requires_grad_(), sizes, k).requires_grad
    torch.testing.assert_close(x.detach(), before, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(3)}, r"x must have shape \(N, d\), got \(3,\)"),
        ({"x": torch.zeros(3, 2, dtype=torch.int64)}, r"x must have a floating type, got torch.int64"),
        ({"x": torch.empty(2**31, 0)}, r"x must have fewer than 2\^31 points, got 2147483648"),
        ({"sizes": torch.tensor(3)}, r"sizes must have shape \(G,\), got \(\)"),
        ({"sizes": torch.tensor([3.0])}, r"sizes must have type torch.int64, got torch.float32"),
        ({"sizes": torch.empty(1, dtype=torch.int64, device="meta")}, r"sizes must lie on the device of x, cpu, got m"),
        ({"sizes": torch.tensor([4, -1])}, r"sizes must be at least 0, got -1"),
        ({"sizes": torch.tensor([2, 2])}, r"sizes must sum to the 3 points of x, got 4"),
        ({"k": 0}, r"k must be at least 1, got 0"),
        ({"backend": "cuda"}, r"backend must be 'auto', 'torch' or 'triton', got 'cuda'"),
    ],
)
def test_bad_input_is_named(change: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {"x": torch.zeros(3, 2), "sizes": torch.tensor([2, 1]), "k": 2}
    for backend in ("torch", "triton"):  # the inputs are looked at before Triton is
        with pytest.raises(ValueError, match=message):
            segment_knn(**({"backend": backend} | good | change))


def test_triton_where_it_cannot_run_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    x, sizes = torch.zeros(3, 2), torch.tensor([3])
    with pytest.raises(ValueError, match=r"computes in float32, got float64"):
        segment_knn(x.double(), sizes, 2, backend="triton")
    with pytest.raises(ValueError, match=r"takes k up to 64, got 65"):
        segment_knn(x, sizes, MAX_K + 1, backend="triton")
    monkeypatch.setattr(module, "_triton_is_installed", lambda: True)
    monkeypatch.setattr(module, "_interpreted", lambda: False)
    with pytest.raises(ValueError, match=r"needs CUDA tensors, got x on cpu"):
        segment_knn(x, sizes, 2, backend="triton")


def test_module_loads_and_falls_back_to_torch_where_triton_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)  # an import of it now fails
    spec = importlib.util.spec_from_file_location("copied_kernel", str(module.__file__))
    assert spec is not None
    assert spec.loader is not None
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    x, sizes = torch.tensor([[0.0], [2.0], [1.0]]), torch.tensor([3])
    assert copy.segment_knn(x, sizes, 2).tolist() == [[0, 2], [1, 2], [2, 0]]
    with pytest.raises(ValueError, match="package triton, which is not installed"):
        copy.segment_knn(x, sizes, 2, backend="triton")


def naive(x: Tensor, sizes: Tensor, k: int) -> Tensor:
    """Compute the same from all distances of the batch, those between graphs masked: what a script would write."""
    graph = torch.repeat_interleave(torch.arange(len(sizes), device=x.device), sizes, output_size=len(x))
    distance = torch.cdist(x, x).masked_fill(graph[:, None] != graph, torch.inf).fill_diagonal_(-1.0)
    return distance.topk(k, largest=False).indices


def test_one_matrix_of_distances_agrees() -> None:
    x = torch.randn(70, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    sizes = torch.tensor([10, 25, 35])
    assert naive(x, sizes, 6).tolist() == segment_knn(x, sizes, 6).tolist()


@pytest.mark.parametrize("f", [naive, reference_segment_knn], ids=["naive", "torch"])
def test_speed_on_the_cpu(benchmark: Any, f: Any) -> None:
    benchmark(f, *benchmark_inputs(128, 18, "cpu"), 7)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("f", [naive, fused], ids=["naive", "triton"])
@pytest.mark.parametrize(("graphs", "points"), [(128, 18), (128, 200), (16, 1000)])
def test_speed_on_the_gpu(benchmark: Any, graphs: int, points: int, f: Any) -> None:
    inputs = benchmark_inputs(graphs, points, "cuda")

    def step() -> None:
        f(*inputs, 7)
        torch.cuda.synchronize()

    benchmark(step)


def benchmark_inputs(graphs: int, points: int, device: str) -> tuple[Tensor, Tensor]:
    """Make graphs of half to one and a half times as many points, with 32 features."""
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(points // 2, points + points // 2 + 1, (graphs,), generator=generator)
    return torch.randn(int(sizes.sum()), 32, generator=generator).to(device), sizes.to(device)


if __name__ == "__main__":
    main(*sys.argv[1:])
