"""Reductions, normalisations and pooling."""

from __future__ import annotations

from typing import Any

from tvm import te, topi

from tests.corpus.programs.build import Builder, apply

_SHAPE = (29, 200)
_IMAGE = (2, 6, 15, 17)


def programs() -> dict[str, Builder]:
    """Name -> builder."""
    return _sums() | _norms() | _pools()


def _sums() -> dict[str, Builder]:
    result = {
        f"{name}_{axis}": apply(getattr(topi, name), _SHAPE, axis=axis)
        for name in ("sum", "max", "min", "prod")
        for axis in (0, 1)
    }
    result |= {
        "sum_all": apply(topi.sum, _SHAPE),
        "sum_middle": apply(topi.sum, (6, 40, 12), axis=1),
        "sum_two": apply(topi.sum, (6, 40, 12), axis=(0, 2), keepdims=True),
        "sum_of_sum": apply(lambda x: topi.sum(topi.sum(x, axis=2), axis=1), (6, 40, 12)),
        "sum_of_squares": apply(lambda x: topi.sum(topi.multiply(x, x), axis=1), _SHAPE),
        "sum_then_exp": apply(lambda x: topi.exp(topi.sum(x, axis=1)), _SHAPE),
        "sum_prime": apply(topi.sum, (3, 10007), axis=1),
        "sum_one": apply(topi.sum, (29, 1), axis=1),
        "any": apply(topi.any, _SHAPE, dtype="bool", axis=1),
        "all": apply(topi.all, _SHAPE, dtype="bool", axis=1),
        "sum_int32": apply(topi.sum, _SHAPE, dtype="int32", axis=1),
        "sum_float16": apply(topi.sum, _SHAPE, dtype="float16", axis=1),
        "argmax": apply(topi.argmax, _SHAPE, axis=1),
        "argmin": apply(topi.argmin, _SHAPE, axis=1),
        "mean_and_variance": apply(_moments, _SHAPE),
        "collapse_sum": apply(topi.collapse_sum, _SHAPE, target_shape=(200,)),
        "cumsum": apply(topi.cumsum, _SHAPE, axis=1),
    }
    return result


def _moments(x: te.Tensor) -> te.Tensor:
    count = float(_SHAPE[1])
    mean = topi.divide(topi.sum(x, axis=1, keepdims=True), count)
    centred = topi.subtract(x, mean)
    return topi.divide(topi.sum(topi.multiply(centred, centred), axis=1), count)


def _norms() -> dict[str, Builder]:
    nn = topi.nn
    return {
        "softmax": apply(nn.softmax, _SHAPE, axis=-1),
        "softmax_first": apply(nn.softmax, _SHAPE, axis=0),
        "fast_softmax": apply(nn.fast_softmax, _SHAPE, axis=-1),
        "log_softmax": apply(nn.log_softmax, _SHAPE, axis=-1),
        "layer_norm": apply(nn.layer_norm, _SHAPE, (200,), (200,), axis=[1], epsilon=1e-5),
        "rms_norm": apply(nn.rms_norm, _SHAPE, (200,), axis=[1], epsilon=1e-5),
        "group_norm": apply(nn.group_norm, (2, 6, 9, 7), (6,), (6,), num_groups=3, channel_axis=1,
                            axes=[2, 3], epsilon=1e-5),
        "instance_norm": apply(nn.instance_norm, (2, 6, 9, 7), (6,), (6,), axis=[2, 3],
                               channel_axis=1, epsilon=1e-5),
        "batch_norm": apply(nn.batch_norm, (2, 6, 9, 7), (6,), (6,), (6,), (6,), axis=1),
        "batch_norm_inference": apply(
            lambda x, g, b, m, v: nn.batch_norm(x, g, b, m, v, axis=1, training=False)[0],
            (2, 6, 9, 7), (6,), (6,), (6,), (6,)),
        "lrn": apply(nn.lrn, (1, 8, 9, 7), size=5),
        "nll_loss": apply(_nll, (12, 9), (12,), (9,), dtypes=["float32", "int32", "float32"]),
    }  # fmt: skip


def _nll(predictions: te.Tensor, targets: te.Tensor, weights: te.Tensor) -> te.Tensor:
    return topi.nn.nll_loss(predictions, targets, weights, "mean", -100)


def _pools() -> dict[str, Builder]:
    nn = topi.nn
    window: dict[str, Any] = {
        "kernel": (3, 3),
        "stride": (2, 2),
        "dilation": (1, 1),
        "padding": (1, 1, 1, 1),
    }
    return {
        "max_pool": apply(nn.pool2d, _IMAGE, pool_type="max", **window),
        "avg_pool": apply(nn.pool2d, _IMAGE, pool_type="avg", **window),
        "avg_pool_counted": apply(
            nn.pool2d, _IMAGE, pool_type="avg", count_include_pad=False, **window
        ),
        "max_pool1d": apply(nn.pool1d, (2, 6, 31), kernel=[3], stride=[2], dilation=[1],
                            padding=[1, 1], pool_type="max"),
        "avg_pool3d": apply(nn.pool3d, (1, 3, 8, 9, 10), kernel=[2, 2, 2], stride=[2, 2, 2],
                            dilation=[1, 1, 1], padding=[0] * 6, pool_type="avg"),
        "global_avg_pool": apply(nn.global_pool, _IMAGE, pool_type="avg"),
        "global_max_pool": apply(nn.global_pool, _IMAGE, pool_type="max"),
        "adaptive_even": apply(nn.adaptive_pool, (2, 6, 14, 14), output_size=(7, 7),
                               pool_type="avg"),
        "adaptive_uneven": apply(nn.adaptive_pool, _IMAGE, output_size=(4, 5), pool_type="avg"),
        "adaptive_max": apply(nn.adaptive_pool, _IMAGE, output_size=(4, 5), pool_type="max"),
        "pool_grad": apply(nn.pool_grad, (1, 4, 5, 5), (1, 4, 10, 10), kernel=(2, 2),
                           stride=(2, 2), padding=(0, 0, 0, 0), pool_type="avg"),
    }  # fmt: skip
