"""Fused kernels, each beside the plain torch function that defines what it computes.

A kernel earns its place when several papers compute the same thing over large tensors and an unfused
form reads or stores them more often than needed. This docstring is the pattern for the next one.

Layout. `shared/kernels/NAME.py` is complete in itself and can be copied alone. In this order it holds:

- a docstring with the formulas, the gradients, and how often each large tensor is read and written;
- `reference_NAME`: the definition, in plain torch, on any device, in double precision too,
  differentiated by autograd. It is written to be read, and the kernel is tested against it;
- `NAME`: the one public function. It has the reference's signature and `backend="auto"`, which means
  Triton for CUDA tensors and otherwise the reference; `"torch"` and `"triton"` force one of them. Both
  check their arguments with one `_check`;
- `_forward_kernel` and `_backward_kernel`: undecorated functions in Triton's language. `_kernels`
  imports triton and hands them to its compiler when they are first needed, so that importing the module
  stays light and works where Triton does not exist (macOS). It declares `tl` global, because Triton
  resolves every name in a kernel, annotations too, in its module: use `tl`, builtins and nothing else;
- one `torch.autograd.Function` that launches them. It saves its inputs and a few numbers per row and
  recomputes the rest in the backward.

Import it from its module, `from shared.kernels.NAME import NAME`. Nothing is re-exported here, because
the function would hide the module of the same name.

Arithmetic. Half-precision and float32 inputs are computed in float32, on both paths; a sum (a loss) is
returned in float32, a map of the input (a rotation) in the input's type, which a gradient has too.
Offsets of rows are int64, since N * K may pass 2**31. Nothing in the
Triton path may wait for the device, so values (such as labels) are checked only where they lie on the
CPU; on the device a bad value must turn into NaN, never into a read outside the tensor.

Tests, in `shared/tests/test_kernels.py`, `test_rotary.py`, `test_segment_knn.py` and `test_packed_sg.py`, need no GPU:

- the reference against numbers worked out elsewhere, and `torch.autograd.gradcheck`;
- the kernel against the reference in float64, forward and backward, through Triton's interpreter. It is
  switched on by TRITON_INTERPRET=1, which must be set before anything imports triton, and torch may do
  that at any time. So a fresh process evaluates all cases, and the tests compare what it returns.
  Sizes include one that is no power of two, one larger than a block, one row and no rows;
- the kernel against the compiler (`slow`): Triton compiles ahead of time for a GPU that need not be
  there, which finds what the interpreter lets pass, such as names that only Python can resolve;
- where a GPU is present, the same cases on it.

Tolerance. float32 results lie within 2e-6 of the float64 reference evaluated on the same (rounded)
inputs, times the largest number that enters the sum (for logits of 1e4 at temperature 1: 0.02). A
gradient in half precision may differ by one unit in its last place more.
"""
