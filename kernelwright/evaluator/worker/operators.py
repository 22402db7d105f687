"""Facts about ATen operators by name: which of them never round, and how many terms an output sums up.

Runs in the oracle's sandbox. Names carry neither namespace, overload, nor the underscore of in-place forms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from kernelwright.evaluator.accuracy.budget import Reduction

_EXACT_NAMES = """
    _local_scalar_dense _to_copy _unsafe_view _unsafe_index abs all alias amax amin any arange argmax argmin argsort
    as_strided as_strided_copy bernoulli bucketize cat ceil channel_shuffle clamp clamp_max clamp_min clone
    constant_pad_nd contiguous copy copysign cummax cummin detach diag_embed embedding empty empty_like empty_permuted
    empty_strided eq equal expand_copy eye fill flip floor frac full full_like gather ge gt hardtanh index index_copy
    index_fill index_put _index_put_impl index_select isfinite isinf isnan item kthvalue le lift
    lift_fresh lift_fresh_copy linspace logical_and logical_not logical_or logical_xor lt masked_fill masked_scatter
    masked_select max max_pool2d_with_indices max_pool3d_with_indices max_unpool2d maximum median min minimum mode
    narrow_copy native_channel_shuffle ne neg new_empty new_empty_strided new_full new_ones new_zeros nonzero
    ones ones_like permute_copy pixel_shuffle pixel_unshuffle rand rand_like randint randn randn_like random
    reflection_pad1d reflection_pad2d relu repeat repeat_interleave replication_pad1d replication_pad2d resize
    roll rot90 round scalar_tensor scatter searchsorted select_backward select_copy select_scatter set sgn sign signbit
    slice_copy slice_scatter sort stack threshold topk tril tril_indices triu triu_indices trunc unfold_copy uniform
    unique where zero zeros zeros_like _adaptive_max_pool2d adaptive_max_pool2d adaptive_max_pool3d im2col one_hot
    normal exponential relu6
"""
_EXACT = frozenset(_EXACT_NAMES.split())


_PASSIVE_NAMES = """
    _to_copy alias arange clone contiguous copy detach empty empty_like empty_permuted empty_strided eye fill full
    full_like lift lift_fresh lift_fresh_copy linspace new_empty new_empty_strided new_full new_ones new_zeros ones
    ones_like resize scalar_tensor set zero zeros zeros_like
"""
_PASSIVE = frozenset(_PASSIVE_NAMES.split())


def is_passive(name: str) -> bool:
    """Whether an operator only creates or copies tensors."""
    return name in _PASSIVE


def is_exact(name: str) -> bool:
    """Whether an operator only creates, moves, selects or compares values, so that it never rounds."""
    return name in _EXACT


def reduction(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Reduction | None:
    """The reduction that this call does for each of its results; None if it is not a reduction."""
    first = result[0] if isinstance(result, (tuple, list)) and result else result
    made = first.numel() if isinstance(first, Tensor) else 1
    if "scaled_dot_product" in name:
        query, key = args[0], args[1]
        return Reduction(max(int(query.shape[-1]), int(key.shape[-2])), max(1, made))
    rule = _RULES.get(name)
    terms = rule(args, kwargs, result) if rule else 1
    if terms <= 1:
        return None
    sums = made // terms if rule in _SHARED else made
    return Reduction(terms, max(1, sums), "product" if rule in _PRODUCTS else "norm" if name in _NORMS else "sum")


_Rule = Callable[[Sequence[Any], Mapping[str, Any], Any], int]


def _contraction(position: int, dim: int) -> _Rule:
    """The size of dimension ``dim`` of the operand at ``position``."""
    return lambda args, kwargs, result: int(args[position].shape[dim])


_first_factor, _second_factor, _transformed = _contraction(0, -1), _contraction(1, -1), _contraction(0, -1)


def _convolution(args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> int:
    # weight: (out, in / groups, *kernel); transposed: (in, out / groups, *kernel), each output sums over in / groups
    weight = args[1]
    transposed = len(args) > 6 and bool(args[6])
    if not transposed:
        return int(weight[0].numel())
    groups = int(args[8]) if len(args) > 8 else 1
    return int(weight.shape[0] // groups * math.prod(weight.shape[2:]))


def _ratio(args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> int:
    """Elements of the first tensor over elements of the first result."""
    first = result[0] if isinstance(result, (tuple, list)) else result
    source = args[0] if args else None
    if not isinstance(source, Tensor) or not isinstance(first, Tensor) or first.numel() == 0:
        return 1
    return -(-int(source.numel()) // int(first.numel()))


def _targets(args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> int:
    """Elements of the second argument, each of which gives one term."""
    return int(args[1].numel())


def _along_dim(args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> int:
    dim = kwargs.get("dim", args[1] if len(args) > 1 else -1)
    return int(args[0].shape[dim]) if args[0].ndim else 1


def _layer_norm(args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> int:
    return math.prod(int(size) for size in args[1])


def _group_norm(args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> int:
    x = args[0]
    groups = int(args[6]) if len(args) > 6 else 1
    return int(x.numel() // max(1, x.shape[0] * groups))


def _batch_norm(args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> int:
    x, training = args[0], any(value is True for value in args[5:6])
    return int(x.numel() // max(1, x.shape[1])) if training else 1


def _along_dim_of_gradient(args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> int:
    return int(args[0].shape[args[2]]) if args[0].ndim else 1


def _layer_norm_backward(args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> int:
    """The longer one of the sums along rows (for the input) and over rows (for the weights)."""
    row = math.prod(int(size) for size in args[2])
    return max(row, int(args[0].numel()) // max(1, row))


def _group_norm_backward(args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> int:
    samples, channels, places, groups = (int(size) for size in args[5:9])
    return max(places * channels // max(1, groups), places * samples)


def _channel_of_gradient(args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> int:
    return int(args[0].numel() // max(1, args[0].shape[1]))


def _convolution_backward(args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> int:
    """Terms of a weight's gradient: every place of the output in every sample."""
    gradient = args[0]
    return int(gradient.numel() // max(1, gradient.shape[1]))


def _kernel_window(args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> int:
    kernel = args[1] if len(args) > 1 else kwargs.get("kernel_size", 1)
    sizes = [kernel] if isinstance(kernel, int) else [int(size) for size in kernel]
    if len(sizes) == 1:
        sizes *= max(1, args[0].ndim - 2)
    return int(math.prod(sizes))


def _scattered(args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> int:
    source = args[3] if len(args) > 3 else kwargs.get("src", kwargs.get("source"))
    dim = args[1] if len(args) > 1 else 0
    return int(source.shape[dim]) if isinstance(source, Tensor) and source.ndim else 1


def _same_for(names: str, rule: _Rule) -> dict[str, _Rule]:
    return dict.fromkeys(names.split(), rule)


_RULES: Mapping[str, _Rule] = {
    **_same_for("mm bmm mv dot vdot linear matmul _int_mm mkldnn_linear", _first_factor),
    **_same_for("addmm baddbmm addmv addbmm _addmm_activation", _second_factor),
    **_same_for("_cdist_forward _euclidean_dist", _transformed),
    **_same_for("convolution _convolution convolution_overrideable mkldnn_convolution", _convolution),
    **_same_for(
        "sum nansum mean var std var_mean std_mean prod norm linalg_vector_norm logsumexp trace "
        "mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits "
        "soft_margin_loss multi_margin_loss kl_div "
        "_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool1d sum_to_size",
        _ratio,
    ),
    **_same_for("convolution_backward", _convolution_backward),
    **_same_for("nll_loss_forward nll_loss2d_forward", _targets),
    **_same_for(
        "_softmax _log_softmax _safe_softmax softmax log_softmax cumsum cumprod logcumsumexp _logcumsumexp", _along_dim
    ),
    **_same_for("_softmax_backward_data _log_softmax_backward_data", _along_dim_of_gradient),
    **_same_for("native_layer_norm _fused_rms_norm rms_norm", _layer_norm),
    **_same_for("native_layer_norm_backward _fused_rms_norm_backward", _layer_norm_backward),
    **_same_for("native_batch_norm_backward", _channel_of_gradient),
    **_same_for("native_group_norm_backward", _group_norm_backward),
    **_same_for("native_group_norm", _group_norm),
    **_same_for("native_batch_norm _native_batch_norm_legit cudnn_batch_norm", _batch_norm),
    **_same_for("avg_pool1d avg_pool2d avg_pool3d max_pool2d_with_indices max_pool3d_with_indices", _kernel_window),
    **_same_for("scatter_add index_add scatter_reduce index_reduce", _scattered),
    **_same_for("_fft_r2c _fft_c2c _fft_c2r", _transformed),
}
_NORM_NAMES = """
    _softmax _log_softmax _safe_softmax softmax log_softmax logsumexp native_layer_norm _fused_rms_norm rms_norm
    native_group_norm native_batch_norm _native_batch_norm_legit cudnn_batch_norm
"""
_NORMS = frozenset(_NORM_NAMES.split())
_PRODUCTS = frozenset({_first_factor, _second_factor, _convolution, _convolution_backward})
_SHARED = frozenset(
    {
        _along_dim,
        _along_dim_of_gradient,
        _layer_norm,
        _layer_norm_backward,
        _group_norm,
        _batch_norm,
        _channel_of_gradient,
        _group_norm_backward,
    }
)  # each sum is shared by one output for each of its terms
