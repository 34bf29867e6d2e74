"""Cross-entropy and the divergence from a frozen network, fused over one read of both logits.

Losses of the form CE(y, f(x)) + w * KL(f(x) || g(x)), with g a frozen network, any weight w and a
temperature on the divergence, need three log-softmaxes of N x K logits. Here is what they share. For a
row of `logits` z, of `reference` r, a label y and a temperature t:

    cross_entropy = log sum_k exp(z_k) - z_y
    kl            = sum_k p_k log(p_k / q_k)      with p = softmax(z / t), q = softmax(r / t)

The divergence is not multiplied by t^2: that belongs to the weight, and papers differ on it.
With d_k = ((z_k - max z) - (r_k - max r)) / t, and sums over exponentials of centred logits,

    kl = sum_k p_k d_k - log sum_k exp((z_k - max z) / t) + log sum_k exp((r_k - max r) / t),

whose logarithms lie in [0, log K] however large the logits, and cancel where the rows are equal. The
gradients are

    d cross_entropy / d z_k = softmax(z)_k - [k = y]
    d kl / d z_k            = p_k (log(p_k / q_k) - kl) / t = p_k (d_k - sum_j p_j d_j) / t.

The reference network is frozen, so r gets no gradient.

Forward: each logit is read once (and z_y, z_0, r_0 once more), because maxima and sums are carried along
the row and rescaled when a maximum rises (Milakov and Gimelshein, 2018, arXiv:1805.02867, Algorithm 3).
It stores five numbers per row. Backward: each logit is read once and each gradient written once.
Nothing of size N x K is stored in between, save a copy of logits whose columns do not lie side by side.
"""

from __future__ import annotations

import functools
import importlib.util
import math
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

if TYPE_CHECKING:
    import triton.language as tl

__all__ = ["cross_entropy_kl", "reference_cross_entropy_kl"]

MAX_BLOCK = 4096  # columns held in registers at a time: 2 x 16 values per thread at 8 warps


def reference_cross_entropy_kl(
    logits: Tensor, reference: Tensor, labels: Tensor, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Compute `cross_entropy_kl` in plain torch, on any device and with autograd of any order.

    Arguments, results and errors are those of `cross_entropy_kl`. float64 is computed in float64, any
    other type in float32.
    """
    _check(logits, reference, labels, temperature)
    dtype = torch.promote_types(torch.promote_types(logits.dtype, reference.dtype), torch.float32)
    z, r = logits.to(dtype), reference.to(dtype)  # (N, K)
    # gather rather than F.cross_entropy, which takes the label -100 for a row to leave out
    cross_entropy = -z.log_softmax(-1).gather(-1, labels[:, None])[:, 0]  # (N,)
    log_p, log_q = (z / temperature).log_softmax(-1), (r / temperature).log_softmax(-1)
    return cross_entropy, (log_p.exp() * (log_p - log_q)).sum(-1)


def cross_entropy_kl(
    logits: Tensor,
    reference: Tensor,
    labels: Tensor,
    temperature: float = 1.0,
    *,
    backend: Literal["auto", "torch", "triton"] = "auto",
) -> tuple[Tensor, Tensor]:
    """Compute each sample's cross-entropy and its divergence from a frozen network's prediction.

    Both are differentiable with respect to `logits`; on the Triton path once, not twice.

    Args:
        logits: (N, K), finite, K at least 1, any floating type.
        reference: (N, K), finite, any floating type, the frozen network's logits. It receives no
            gradient, so it must not require one.
        labels: (N,), int64, in [0, K). On the CPU they are checked. On a CUDA device that would mean
            waiting for it: there a label out of range yields NaN (Triton) or a device-side assertion
            (torch).
        temperature: t > 0, divides both logits in the divergence. The cross-entropy is taken at 1.
        backend: `auto` is Triton for CUDA tensors of at most 32 bits where Triton is installed, and
            otherwise torch.

    Returns:
        Cross-entropy (N,) and KL(softmax(logits / t) || softmax(reference / t)) (N,), in nats, float64 if
        an input is, otherwise float32. The divergence is not multiplied by t^2. It is not clamped, so
        rounding may leave it just below 0.

    Raises:
        ValueError: if a shape, type, device, label, the temperature or the backend is not as above, if
            `reference` requires a gradient, or if Triton is asked for where it cannot run.
    """
    if backend not in ("auto", "torch", "triton"):
        raise ValueError(f"backend must be 'auto', 'torch' or 'triton', got {backend!r}")
    double = torch.float64 in (logits.dtype, reference.dtype)
    if backend == "auto":
        backend = "triton" if logits.is_cuda and not double and _triton_is_installed() else "torch"
    if backend == "torch":
        return reference_cross_entropy_kl(logits, reference, labels, temperature)
    _check(logits, reference, labels, temperature)
    if double:
        raise ValueError("backend 'triton' computes in float32, got float64 logits or reference")
    if not _triton_is_installed():
        raise ValueError("backend 'triton' needs the package triton, which is not installed")
    if not (logits.is_cuda or _interpreted()):
        raise ValueError(
            f"backend 'triton' needs CUDA tensors, got logits on {logits.device} "
            "(TRITON_INTERPRET=1, set before triton is imported, runs it on the CPU)"
        )
    return _CrossEntropyKL.apply(logits, reference, labels, float(temperature))


def _check(logits: Tensor, reference: Tensor, labels: Tensor, temperature: float) -> None:
    if logits.ndim != 2 or logits.shape[1] == 0:
        raise ValueError(f"logits must have shape (N, K) with K at least 1, got {tuple(logits.shape)}")
    if reference.shape != logits.shape:
        raise ValueError(
            f"reference must have the shape of logits, {tuple(logits.shape)}, got {tuple(reference.shape)}"
        )
    if labels.shape != logits.shape[:1]:
        raise ValueError(f"labels must have shape ({logits.shape[0]},), got {tuple(labels.shape)}")
    for name, tensor in (("logits", logits), ("reference", reference)):
        if not tensor.is_floating_point():
            raise ValueError(f"{name} must have a floating type, got {tensor.dtype}")
    if labels.dtype != torch.int64:
        raise ValueError(f"labels must have type torch.int64, got {labels.dtype}")
    for name, tensor in (("reference", reference), ("labels", labels)):
        if tensor.device != logits.device:
            raise ValueError(f"{name} must lie on the device of logits, {logits.device}, got {tensor.device}")
    if reference.requires_grad:
        raise ValueError("reference must not require a gradient, because it gets none: detach it")
    if not (math.isfinite(temperature) and temperature > 0):
        raise ValueError(f"temperature must be positive and finite, got {temperature}")
    if labels.device.type == "cpu" and labels.numel():
        low, high = (int(bound) for bound in labels.aminmax())
        if low < 0 or high >= logits.shape[1]:
            raise ValueError(f"labels must lie in [0, {logits.shape[1]}), got {low if low < 0 else high}")


def _forward_kernel(
    logits: tl.tensor,
    reference: tl.tensor,
    labels: tl.tensor,
    cross_entropy: tl.tensor,
    kl: tl.tensor,
    statistics: tl.tensor,  # (N, 5), for the backward: see the last lines
    logits_stride: int,
    reference_stride: int,
    K: int,
    inverse_temperature: float,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    z_row = logits + row * logits_stride
    r_row = reference + row * reference_stride
    # The running maxima start inside the row: from -inf the first rescaling would be -inf - -inf.
    z_max = tl.load(z_row).to(tl.float32)
    r_max = tl.load(r_row).to(tl.float32)
    z_sum = 0.0  # sum exp(z - max z)
    p_sum = 0.0  # sum exp((z - max z) / t)
    q_sum = 0.0  # sum exp((r - max r) / t)
    weighted = 0.0  # sum exp((z - max z) / t) d
    for start in range(0, K, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        inside = columns < K
        z = tl.load(z_row + columns, mask=inside, other=-float("inf")).to(tl.float32)
        r = tl.load(r_row + columns, mask=inside, other=-float("inf")).to(tl.float32)
        z_old, r_old = z_max, r_max
        z_max = tl.maximum(z_max, tl.max(z, axis=0))
        r_max = tl.maximum(r_max, tl.max(r, axis=0))
        z, r = z - z_max, r - r_max
        z_rise, r_rise = z_max - z_old, r_max - r_old
        p_decay = tl.exp(-z_rise * inverse_temperature)
        q_decay = tl.exp(-r_rise * inverse_temperature)
        p = tl.exp(z * inverse_temperature)
        d = tl.where(inside, (z - r) * inverse_temperature, 0.0)
        d_shift = (z_rise - r_rise) * inverse_temperature
        weighted = (weighted - p_sum * d_shift) * p_decay + tl.sum(p * d, axis=0)
        z_sum = z_sum * tl.exp(-z_rise) + tl.sum(tl.exp(z), axis=0)
        p_sum = p_sum * p_decay + tl.sum(p, axis=0)
        q_sum = q_sum * q_decay + tl.sum(tl.exp(r * inverse_temperature), axis=0)

    label = tl.load(labels + row)
    valid = (label >= 0) & (label < K)
    z_label = tl.load(z_row + label, mask=valid, other=0.0).to(tl.float32)
    log_z_sum = tl.where(valid, tl.log(z_sum), float("nan"))  # NaN reaches the gradient too
    log_p_sum = tl.log(p_sum)
    d_mean = weighted / p_sum
    tl.store(cross_entropy + row, log_z_sum - (z_label - z_max))
    tl.store(kl + row, d_mean - log_p_sum + tl.log(q_sum))
    tl.store(statistics + 5 * row, z_max)
    tl.store(statistics + 5 * row + 1, r_max)
    tl.store(statistics + 5 * row + 2, log_z_sum)
    tl.store(statistics + 5 * row + 3, log_p_sum)
    tl.store(statistics + 5 * row + 4, d_mean)


def _backward_kernel(
    logits: tl.tensor,
    reference: tl.tensor,
    labels: tl.tensor,
    cross_entropy_grad: tl.tensor,
    kl_grad: tl.tensor,
    statistics: tl.tensor,  # (N, 5), from the forward
    logits_grad: tl.tensor,  # (N, K), contiguous
    logits_stride: int,
    reference_stride: int,
    K: int,
    inverse_temperature: float,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    z_row = logits + row * logits_stride
    r_row = reference + row * reference_stride
    z_max = tl.load(statistics + 5 * row)
    r_max = tl.load(statistics + 5 * row + 1)
    log_z_sum = tl.load(statistics + 5 * row + 2)
    log_p_sum = tl.load(statistics + 5 * row + 3)
    d_mean = tl.load(statistics + 5 * row + 4)
    label = tl.load(labels + row)
    cross_entropy_weight = tl.load(cross_entropy_grad + row)
    kl_weight = tl.load(kl_grad + row) * inverse_temperature
    for start in range(0, K, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        inside = columns < K
        z = tl.load(z_row + columns, mask=inside, other=0.0).to(tl.float32) - z_max
        r = tl.load(r_row + columns, mask=inside, other=0.0).to(tl.float32) - r_max
        p = tl.exp(z * inverse_temperature - log_p_sum)
        d = (z - r) * inverse_temperature
        one_hot = tl.where(columns == label, 1.0, 0.0)
        grad = cross_entropy_weight * (tl.exp(z - log_z_sum) - one_hot) + kl_weight * p * (d - d_mean)
        tl.store(logits_grad + row * K + columns, grad, mask=inside)


@functools.cache
def _triton_is_installed() -> bool:
    return importlib.util.find_spec("triton") is not None


@functools.cache
def _kernels() -> tuple[Any, Any]:
    global tl  # the kernels' names are looked up in this module
    import triton
    import triton.language as tl

    return triton.jit(_forward_kernel), triton.jit(_backward_kernel)


def _interpreted() -> bool:
    from triton import JITFunction

    return not isinstance(_kernels()[0], JITFunction)


def _launch(kernel: Any, tensors: tuple[Tensor, ...], temperature: float) -> None:
    logits, reference = tensors[:2]
    n, k = logits.shape
    block = min(MAX_BLOCK, 1 << (k - 1).bit_length())
    warps = min(8, max(1, block // 256))
    strides = (logits.stride(0), reference.stride(0))
    with torch.cuda.device(logits.get_device()):  # Triton launches on the current device
        kernel[(n,)](*tensors, *strides, k, 1 / temperature, BLOCK=block, num_warps=warps)


class _CrossEntropyKL(torch.autograd.Function):
    """`cross_entropy_kl` on the Triton path."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, reference: Tensor, labels: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        # Rows may lie anywhere; a copy is cheaper than reading columns that do not lie side by side.
        logits, reference = (x if x.stride(1) == 1 else x.contiguous() for x in (logits, reference))
        labels = labels.contiguous()
        n = len(logits)
        cross_entropy, kl = (logits.new_empty(n, dtype=torch.float32) for _ in range(2))
        statistics = logits.new_empty(n, 5, dtype=torch.float32)
        _launch(_kernels()[0], (logits, reference, labels, cross_entropy, kl, statistics), temperature)
        ctx.save_for_backward(logits, reference, labels, statistics)
        ctx.temperature = temperature
        return cross_entropy, kl

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cross_entropy_grad: Tensor, kl_grad: Tensor) -> tuple[Tensor, None, None, None]:
        logits, reference, labels, statistics = ctx.saved_tensors
        logits_grad = torch.empty_like(logits, memory_format=torch.contiguous_format)
        grads = (cross_entropy_grad.contiguous(), kl_grad.contiguous())  # those of a mean are expanded
        _launch(_kernels()[1], (logits, reference, labels, *grads, statistics, logits_grad), ctx.temperature)
        return logits_grad, None, None, None
