"""Every family of topi again: with odd extents, other dtypes, layouts and modes."""

from __future__ import annotations

from typing import Any

from tvm import te, tirx, topi

from tests.corpus.programs.build import Builder, apply

_ODD = (7, 31, 3)
_FLOATS = ("float16", "bfloat16", "float64")
_INTEGERS = ("int8", "int32", "int64")


def programs() -> dict[str, Builder]:
    """Name -> builder."""
    return (
        _math()
        | _integers()
        | _reductions()
        | _products()
        | _convolutions()
        | _norms()
        | _gathers()
        | _moves()
        | _pools()
        | _images()
    )


def _math() -> dict[str, Builder]:
    names = "acos acosh asin asinh atan atanh tan isinf log10 log2 identity".split()
    result = {f"{name}_odd": apply(getattr(topi, name), _ODD) for name in names}
    for dtype in _FLOATS:
        for name in ("exp", "sqrt", "tanh", "floor", "sigmoid"):
            result[f"{name}_{dtype}"] = apply(getattr(topi, name), _ODD, dtype=dtype)
        types = ["bool", dtype, dtype]
        result[f"where_{dtype}"] = apply(topi.where, _ODD, _ODD, _ODD, dtypes=types)
        result[f"leaky_relu_{dtype}"] = apply(topi.nn.leaky_relu, _ODD, dtype=dtype, alpha=0.1)
    result |= {
        f"cast_{a}_{b}": apply(lambda x, b=b: topi.cast(x, b), _ODD, dtype=a)
        for a, b in (
            ("float32", "bfloat16"),
            ("float16", "float64"),
            ("int64", "float32"),
            ("bool", "int8"),
            ("uint8", "float16"),
            ("int32", "bool"),
        )
    }
    result["atan2"] = apply(topi.atan2, _ODD, _ODD)
    return result


def _integers() -> dict[str, Builder]:
    result = {}
    for dtype in _INTEGERS:
        for name in ("subtract", "minimum", "bitwise_and", "greater"):
            result[f"{name}_{dtype}_odd"] = apply(getattr(topi, name), _ODD, (31, 1), dtype=dtype)
        result[f"clip_{dtype}"] = apply(topi.clip, _ODD, dtype=dtype, a_min=-3, a_max=5)
        result[f"floor_mod_{dtype}_odd"] = apply(topi.floor_mod, _ODD, _ODD, dtype=dtype)
        result[f"shift_{dtype}"] = apply(topi.right_shift, _ODD, _ODD, dtype=dtype)
    result["reinterpret"] = apply(lambda x: topi.reinterpret(x, "int32"), _ODD)
    result["fixed_point_multiply"] = apply(
        lambda x: topi.fixed_point_multiply(x, 1 << 30, 3), _ODD, dtype="int32"
    )
    return result


def _reductions() -> dict[str, Builder]:
    result = {}
    for dtype in (*_FLOATS, *_INTEGERS):
        result[f"max_{dtype}"] = apply(topi.max, _ODD, dtype=dtype, axis=1)
        result[f"sum_{dtype}_two"] = apply(topi.sum, _ODD, dtype=dtype, axis=(0, 2))
        result[f"argmax_{dtype}"] = apply(topi.argmax, _ODD, dtype=dtype, axis=1)
    result |= {
        "argmin_all": apply(topi.argmin, (37, 41), axis=None),
        "argmax_first": apply(topi.argmax, (211, 5), axis=0, keepdims=True),
        "argmax_last_equal": apply(topi.argmax, (5, 211), axis=1, select_last_index=True),
        "prod_middle": apply(topi.prod, (5, 37, 11), axis=1),
        "any_odd": apply(topi.any, _ODD, dtype="bool", axis=2),
        "argmax_of_softmax": apply(lambda x: topi.argmax(topi.nn.softmax(x), axis=1), (13, 97)),
        "max_then_sub": apply(lambda x: topi.subtract(x, topi.max(x, 1, keepdims=True)), (13, 97)),
    }
    return result


def _products() -> dict[str, Builder]:
    nn = topi.nn
    result = {
        f"{name}_odd_{dtype}": apply(function, *shapes, dtype=dtype)
        for dtype in ("float32", "float16", "bfloat16", "int32")
        for name, function, shapes in (
            ("dense", nn.dense, ((17, 29), (23, 29))),
            ("batch_matmul", nn.batch_matmul, ((3, 17, 29), (3, 23, 29))),
        )
    }
    result |= {
        "matmul_tb": apply(topi.matmul, (19, 31), (37, 31), transp_b=True),
        "matmul_int8": apply(nn.matmul, (16, 32), (32, 16), dtype="int8", out_dtype="int32"),
        "matrix_vector": apply(lambda a, b: topi.einsum("ij,j->i", a, b), (67, 129), (129,)),
        "einsum_two_sums": apply(
            lambda a, b: topi.einsum("bqhd,bkhd->bhqk", a, b), (2, 9, 3, 8), (2, 11, 3, 8)
        ),
        "einsum_trace": apply(lambda a: topi.einsum("ii->i", a), (23, 23)),
        "dense_two_bias": apply(
            lambda a, b, c: topi.tanh(nn.dense(a, b, c)), (16, 40), (24, 40), (24,)
        ),
        "dense_batch_norm": apply(
            lambda a, b, g: topi.multiply(nn.relu(nn.dense(a, b)), g), (16, 40), (24, 40), (24,)
        ),
        "dense_argmax": apply(
            lambda a, b: topi.argmax(nn.dense(a, b), axis=1), (16, 40), (24, 40)
        ),
        "dense_layer_norm": apply(
            lambda a, b, g: nn.layer_norm(nn.dense(a, b), g, g, [1], 1e-5),
            (16, 40),
            (24, 40),
            (24,),
        ),
        "batch_matmul_ta": apply(
            nn.batch_matmul, (2, 24, 16), (2, 24, 20), transpose_a=True, transpose_b=False
        ),
        "binary_dense": apply(nn.binary_dense, (8, 4), (16, 4), dtype="uint32"),
    }
    return result


def _convolutions() -> dict[str, Builder]:
    nn = topi.nn
    plain: dict[str, Any] = {"stride": 1, "padding": 1, "dilation": 1}
    three: dict[str, Any] = {"strides": 1, "padding": 1, "dilation": 1}
    result = {
        f"conv2d_nhwc_{dtype}": apply(
            nn.conv2d_nhwc, (1, 9, 11, 8), (3, 3, 8, 12), dtype=dtype, **plain
        )
        for dtype in ("float16", "bfloat16", "int32")
    }
    return result | {
        "conv1d_nwc": apply(nn.conv1d_nwc, (1, 31, 8), (3, 8, 12), **three),
        "group_conv1d": apply(nn.group_conv1d_ncw, (1, 8, 31), (12, 4, 3), groups=2, **three),
        "conv3d_ndhwc": apply(nn.conv3d_ndhwc, (1, 5, 6, 7, 4), (3, 3, 3, 4, 6), stride=1,
                              padding=1, dilation=1, groups=1),
        "group_conv2d_nhwc": apply(nn.group_conv2d_nhwc, (1, 9, 11, 8), (3, 3, 4, 12), groups=2,
                                   **plain),
        "conv2d_5x5": apply(nn.conv2d_nchw, (1, 3, 23, 19), (7, 3, 5, 5), stride=2, padding=2,
                            dilation=1),
        "conv2d_uneven_kernel": apply(nn.conv2d_nchw, (1, 5, 13, 17), (6, 5, 1, 7), stride=1,
                                      padding=(0, 3), dilation=1),
        "conv2d_int8": apply(nn.conv2d_nchw, (1, 8, 9, 9), (8, 8, 3, 3), dtype="int8",
                             out_dtype="int32", **plain),
        "depthwise_stride": apply(nn.depthwise_conv2d_nchw, (1, 6, 15, 17), (6, 1, 3, 3),
                                  stride=2, padding=1, dilation=1),
        "depthwise_multiplier": apply(nn.depthwise_conv2d_nchw, (1, 6, 15, 17), (6, 2, 3, 3),
                                      **plain),
        "conv2d_gelu_pool": apply(_conv_pool, (1, 3, 16, 16), (8, 3, 3, 3)),
        "conv2d_instance_norm": apply(
            lambda x, w, g: nn.instance_norm(nn.conv2d_nchw(x, w, 1, 1, 1), g, g, 1, [2, 3],
                                             1e-5), (1, 3, 12, 12), (8, 3, 3, 3), (8,)),
        "conv2d_upsampled": apply(
            lambda x, w: nn.upsampling(nn.conv2d_nchw(x, w, 1, 1, 1), 2, 2), (1, 3, 9, 9),
            (8, 3, 3, 3)),
        "deformable_conv2d": apply(nn.deformable_conv2d_nchw, (1, 4, 7, 7), (1, 18, 7, 7),
                                   (6, 4, 3, 3), strides=1, padding=1, dilation=1,
                                   deformable_groups=1, groups=1, out_dtype="float32"),
    }  # fmt: skip


def _conv_pool(x: te.Tensor, w: te.Tensor) -> te.Tensor:
    conv = topi.nn.relu(topi.nn.conv2d_nchw(x, w, 1, 1, 1))
    return topi.nn.pool2d(conv, (2, 2), (2, 2), (1, 1), (0, 0, 0, 0), "avg")


def _norms() -> dict[str, Builder]:
    nn = topi.nn
    return {
        "softmax_float16": apply(nn.softmax, (11, 53), dtype="float16", axis=-1),
        "softmax_bfloat16": apply(nn.softmax, (11, 53), dtype="bfloat16", axis=-1),
        "layer_norm_float16": apply(nn.layer_norm, (11, 53), (53,), (53,), dtype="float16",
                                    axis=[1], epsilon=1e-5),
        "group_norm_float16": apply(nn.group_norm, (1, 6, 5, 7), (6,), (6,), dtype="float16",
                                    num_groups=2, channel_axis=1, axes=[2, 3], epsilon=1e-5),
        "softmax_middle_odd": apply(nn.softmax, (3, 17, 11), axis=1),
        "log_softmax_4d": apply(lambda x: nn.log_softmax(x, axis=-1), (2, 3, 5, 29)),
        "layer_norm_two_axes": apply(nn.layer_norm, (5, 7, 9), (7, 9), (7, 9), axis=[1, 2],
                                     epsilon=1e-5),
        "layer_norm_of_sum": apply(
            lambda x, y, g: nn.layer_norm(topi.add(x, y), g, g, [1], 1e-5), (9, 70), (9, 70),
            (70,)),
        "rms_norm_of_sum": apply(lambda x, y, g: nn.rms_norm(topi.add(x, y), g, [1], 1e-5),
                                 (9, 70), (9, 70), (70,)),
        "instance_norm_relu": apply(
            lambda x, g: nn.relu(nn.instance_norm(x, g, g, 1, [2, 3], 1e-5)), (2, 3, 11, 5),
            (3,)),
        "group_norm_one_group": apply(nn.group_norm, (2, 6, 35), (6,), (6,), num_groups=1,
                                      channel_axis=1, axes=[2], epsilon=1e-5),
        "group_norm_silu": apply(
            lambda x, g: topi.multiply(y := nn.group_norm(x, g, g, 3, 1, [2, 3], 1e-5),
                                       topi.sigmoid(y)), (1, 6, 9, 7), (6,)),
        "masked_softmax": apply(lambda x, m: nn.softmax(topi.add(x, m), axis=-1), (2, 3, 9, 13),
                                (1, 1, 9, 13)),
    }  # fmt: skip


def _gathers() -> dict[str, Builder]:
    result = {}
    for mode in ("clip", "wrap", "fast"):
        for axis in (0, 1):
            result[f"take_{mode}_{axis}"] = apply(
                topi.take, (19, 33), (3, 7), dtypes=["float32", "int64"], axis=axis, mode=mode
            )
    for dtype in ("float16", "int8", "bool"):
        result[f"take_{dtype}"] = apply(
            topi.take, (19, 33), (7,), dtypes=[dtype, "int32"], axis=0, mode="clip"
        )

    def embedded(table: te.Tensor, position: te.Tensor, i: te.Tensor) -> te.Tensor:
        return topi.add(topi.take(table, i, axis=0, mode="fast"), position)

    def normalised(table: te.Tensor, i: te.Tensor, g: te.Tensor) -> te.Tensor:
        rows = topi.take(table, i, axis=0, mode="fast")
        return topi.nn.layer_norm(rows, g, g, [1], 1e-5)

    return result | {
        "take_flat": apply(topi.take, (19, 33), (11,), dtypes=["float32", "int32"]),
        "gather_first": apply(lambda x, i: topi.gather(x, 0, i), (12, 20), (5, 20),
                              dtypes=["float32", "int64"]),
        "gather_3d": apply(lambda x, i: topi.gather(x, 2, i), (3, 5, 20), (3, 5, 4),
                           dtypes=["float32", "int32"]),
        "gather_nd_batch": apply(lambda x, i: topi.gather_nd(x, i), (12, 20), (1, 9),
                                 dtypes=["float32", "int32"]),
        "embedding_and_position": apply(embedded, (50, 24), (9, 24), (9,),
                                        dtypes=["float32", "float32", "int32"]),
        "embedding_layer_norm": apply(normalised, (50, 24), (9,), (24,),
                                      dtypes=["float32", "int32", "float32"]),
        "gathered_dense": apply(
            lambda t, i, w: topi.nn.dense(topi.take(t, i, axis=0, mode="clip"), w), (50, 32),
            (16,), (24, 32), dtypes=["float32", "int32", "float32"]),
        "take_of_cast": apply(lambda t, i: topi.take(t, topi.cast(i, "int32"), axis=0), (50, 8),
                              (16,), dtypes=["float32", "int64"]),
        "take_of_argmax": apply(lambda t, x: topi.take(t, topi.argmax(x, axis=1), axis=0),
                                (20, 8), (16, 20)),
        "adv_index_two": apply(lambda x, i, j: topi.adv_index(x, [i, j]), (9, 8), (7,), (7,),
                               dtypes=["float32", "int32", "int32"]),
        "one_hot_int64": apply(lambda x: topi.one_hot(x, 1, 0, 7, -1, "int64"), (5, 3),
                               dtype="int64"),
    }  # fmt: skip


def _moves() -> dict[str, Builder]:
    return {
        "transpose_odd": apply(topi.transpose, (7, 11, 13, 3), axes=(0, 3, 1, 2)),
        "transpose_bool": apply(topi.transpose, (37, 41), dtype="bool"),
        "transpose_int64": apply(topi.transpose, (37, 41), dtype="int64"),
        "reshape_bfloat16": apply(topi.reshape, (7, 11, 6), dtype="bfloat16", newshape=(77, 6)),
        "concatenate_three": apply(
            lambda *x: topi.concatenate(list(x), 1), (3, 5, 4), (3, 7, 4), (3, 1, 4)
        ),
        "concatenate_int8": apply(
            lambda *x: topi.concatenate(list(x), 0), (3, 5), (4, 5), dtype="int8"
        ),
        "concatenate_relu": apply(
            lambda a, b: topi.nn.relu(topi.concatenate([a, b], -1)), (9, 5), (9, 13)
        ),
        "concatenate_of_products": apply(
            lambda a, b: topi.concatenate([topi.nn.dense(a, b), a], 1), (16, 32), (24, 32)
        ),
        "pad_then_slice": apply(
            lambda x: topi.strided_slice(topi.nn.pad(x, [1, 1]), [2, 0], [12, 9], [1, 2]), (13, 11)
        ),
        "slice_scatter": apply(lambda x, v: topi.slice_scatter(x, v, 1, 4, 1, 0), (12, 5), (3, 5)),
        "repeat_first": apply(topi.repeat, (5, 7), repeats=2, axis=0),
        "tile_int32": apply(topi.tile, (5, 7), dtype="int32", reps=(3, 2)),
        "stack_last": apply(lambda *x: topi.stack(list(x), -1), (5, 7), (5, 7), (5, 7)),
        "flip_first": apply(topi.flip, (13, 7), axis=0),
        "arange": apply(lambda x: topi.add(x, topi.arange(0, 13, dtype="float32")), (13,)),
        "eye": apply(lambda x: topi.add(x, topi.eye(13, dtype="float32")), (13, 13)),
        "trilu_lower": apply(lambda x: topi.trilu(x, tirx.const(0, "int32"), False), (3, 9, 11)),
        "argsort": apply(topi.argsort, (13,)),
        "topk": apply(lambda x: topi.topk(x, 3), (5, 13)),
        "cumprod": apply(topi.cumprod, (5, 13), axis=1),
        "searchsorted": apply(topi.searchsorted, (13,), (5,)),
        "scatter_nd": apply(
            lambda x, i, u: topi.scatter_nd(x, i, u, "update"),
            (12,),
            (1, 5),
            (5,),
            dtypes=["float32", "int32", "float32"],
        ),
        "fifo_buffer": apply(lambda d, b: topi.nn.fifo_buffer(d, b, 1), (3, 2), (3, 7)),
        "dft": apply(lambda a, b: topi.dft(a, b, False), (4, 8), (4, 8)),
        "hamming_window": apply(
            lambda x: topi.add(x, topi.hamming_window(16, True, 0.54, 0.46, "float32")), (16,)
        ),
    }


def _pools() -> dict[str, Builder]:
    nn = topi.nn

    def pool(shape: tuple[int, ...], kind: str, layout: str, **more: Any) -> Builder:
        return apply(
            nn.pool2d,
            shape,
            kernel=(3, 2),
            stride=(2, 3),
            dilation=(1, 1),
            padding=(1, 0, 1, 1),
            pool_type=kind,
            layout=layout,
            **more,
        )

    def chained(x: te.Tensor) -> te.Tensor:
        for _ in range(2):
            x = nn.pool2d(x, (3, 3), (1, 1), (1, 1), (1, 1, 1, 1), "max")
        return x

    return {
        "pool_pool": apply(chained, (1, 5, 13, 17)),
        "max_pool_nhwc": pool((1, 13, 17, 5), "max", "NHWC"),
        "avg_pool_nhwc": pool((1, 13, 17, 5), "avg", "NHWC"),
        "max_pool_ceil": pool((1, 5, 13, 17), "max", "NCHW", ceil_mode=True),
        "max_pool_float16": pool((1, 5, 13, 17), "max", "NCHW", dtype="float16"),
        "avg_pool_blocked": pool((1, 2, 13, 17, 4), "avg", "NCHW4c"),
        "adaptive_one": apply(
            nn.adaptive_pool, (2, 6, 15, 17), output_size=(1, 1), pool_type="avg"
        ),
        "adaptive_1d": apply(nn.adaptive_pool1d, (2, 6, 15), output_size=[5], pool_type="max"),
        "adaptive_3d_uneven": apply(
            nn.adaptive_pool3d, (1, 2, 7, 8, 9), output_size=(3, 3, 4), pool_type="avg"
        ),
        "global_avg_nhwc": apply(nn.global_pool, (2, 15, 17, 6), pool_type="avg", layout="NHWC"),
    }


def _images() -> dict[str, Builder]:
    result = {}
    for method in ("nearest_neighbor", "linear", "cubic"):
        for mode in ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"):
            result[f"resize_{method}_{mode}"] = apply(
                topi.image.resize2d,
                (1, 7, 9, 4),
                roi=(0.0, 0.0, 0.0, 0.0),
                size=(11, 23),
                layout="NHWC",
                method=method,
                coordinate_transformation_mode=mode,
            )
    return result | {
        "resize3d_linear": apply(topi.image.resize3d, (1, 2, 3, 4, 5), roi=(0.0,) * 6,
                                 size=(5, 6, 7), method="linear"),
        "resize1d_cubic": apply(topi.image.resize1d, (1, 3, 15), roi=(0.0, 0.0), size=[29],
                                method="cubic"),
        "upsampling_3d": apply(topi.nn.upsampling3d, (1, 2, 3, 4, 5), scale_d=2, scale_h=2,
                               scale_w=2),
        "resize_down": apply(topi.image.resize2d, (1, 3, 31, 29), roi=(0.0, 0.0, 0.0, 0.0),
                             size=(7, 13), method="linear"),
        "dilation2d_nhwc": apply(topi.image.dilation2d_nhwc, (1, 9, 9, 4), (3, 3, 4), stride=1,
                                 padding=1, dilations=1),
        "roi_align": apply(topi.vision.roi_align_nchw, (1, 3, 12, 12), (4, 5), pooled_size=3,
                           spatial_scale=1.0, mode=b"avg", sample_ratio=2),
    }  # fmt: skip
