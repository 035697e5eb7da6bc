"""Programs that move data: shapes, orders, pads, slices, gathers, resizing."""

from __future__ import annotations

from tvm import te, tirx, topi
from tvm.topi.nn import pixel_shuffle

from tests.corpus.programs.build import Builder, apply

_SHAPE = (12, 20, 15)
_IMAGE = (1, 8, 12, 14)


def programs() -> dict[str, Builder]:
    """Name -> builder."""
    return _shapes() | _pads() | _pieces() | _gathers() | _images()


def _shapes() -> dict[str, Builder]:
    return {
        "transpose": apply(topi.transpose, _SHAPE, axes=(2, 0, 1)),
        "reshape": apply(topi.reshape, _SHAPE, newshape=(60, 60)),
        "reshape_prime": apply(topi.reshape, (7, 11, 13), newshape=(13, 77)),
        "reshape_after_exp": apply(lambda x: topi.reshape(topi.exp(x), (240, 15)), _SHAPE),
        "reshape_before_exp": apply(lambda x: topi.exp(topi.reshape(x, (240, 15))), _SHAPE),
        "reshape_split": apply(lambda x: topi.reshape(topi.exp(x), (2, 6, 4, 5, 15)), _SHAPE),
        "reshape_mixed": apply(lambda x: topi.reshape(topi.exp(x), (18, 200)), _SHAPE),
        "reshape_of_sum": apply(lambda x: topi.reshape(topi.sum(x, axis=2), (240,)), _SHAPE),
        "expand_dims": apply(topi.expand_dims, _SHAPE, axis=1),
        "squeeze": apply(topi.squeeze, (12, 1, 20), axis=1),
        "flatten": apply(topi.nn.flatten, _SHAPE),
        "flip": apply(topi.flip, _SHAPE, axis=1),
        "repeat": apply(topi.repeat, _SHAPE, repeats=3, axis=1),
        "tile": apply(topi.tile, _SHAPE, reps=(2, 1, 3)),
        "broadcast_to": apply(topi.broadcast_to, (12, 1, 15), shape=_SHAPE),
        "layout_transform": apply(
            topi.layout_transform, _IMAGE, src_layout="NCHW", dst_layout="NCHW4c"
        ),
        "layout_back": apply(
            topi.layout_transform, (1, 2, 12, 14, 4), src_layout="NCHW4c", dst_layout="NCHW"
        ),
        "depth_to_space": apply(topi.nn.depth_to_space, _IMAGE, block_size=2),
        "space_to_depth": apply(topi.nn.space_to_depth, _IMAGE, block_size=2),
        "depth_to_space_crd": apply(topi.nn.depth_to_space, _IMAGE, block_size=2, mode="CRD"),
        "space_to_batch": apply(
            topi.nn.space_to_batch_nd,
            (1, 12, 14, 3),
            block_shape=[2, 2],
            pad_before=[0, 0],
            pad_after=[0, 0],
        ),
        "meshgrid": apply(lambda a, b: topi.meshgrid([a, b], "ij"), (12,), (20,)),
        "reverse_sequence": apply(
            topi.reverse_sequence,
            (12, 5),
            (5,),
            dtypes=["float32", "int32"],
            seq_axis=0,
            batch_axis=1,
        ),
    }


def _pads() -> dict[str, Builder]:
    nn = topi.nn
    return {
        "pad": apply(nn.pad, _SHAPE, pad_before=[1, 2, 3], pad_after=[3, 2, 1]),
        "pad_value": apply(nn.pad, _SHAPE, pad_before=[0, 0, 1], pad_value=-1.0),
        "mirror_pad": apply(nn.mirror_pad, _SHAPE, pad_before=[0, 2, 3], pad_after=[0, 2, 3]),
        "mirror_pad_symmetric": apply(
            nn.mirror_pad, _SHAPE, pad_before=[0, 2, 3], pad_after=[0, 2, 3], mode="SYMMETRIC"
        ),
        "reflect_pad": apply(nn.reflect_pad, _SHAPE, pad_before=[0, 2, 3], pad_after=[0, 2, 3]),
        "replicate_pad": apply(
            nn.replicate_pad, _SHAPE, pad_before=[0, 2, 3], pad_after=[0, 2, 3]
        ),
        "circular_pad": apply(nn.circular_pad, _SHAPE, pad_before=[0, 2, 3], pad_after=[0, 2, 3]),
        "dilate": apply(nn.dilate, _SHAPE, strides=[1, 2, 3]),
        "pad_of_exp": apply(lambda x: nn.pad(topi.exp(x), [0, 1, 1]), _SHAPE),
    }


def _pieces() -> dict[str, Builder]:
    def stack(*tensors: te.Tensor) -> te.Tensor:
        return topi.stack(list(tensors), axis=1)

    def concatenate(*tensors: te.Tensor) -> te.Tensor:
        return topi.concatenate(list(tensors), axis=1)

    return {
        "concatenate": apply(concatenate, (12, 20), (12, 7), (12, 33)),
        "concatenate_itself": apply(lambda x: topi.concatenate([x, x], axis=0), (12, 20)),
        "stack": apply(stack, (12, 20), (12, 20)),
        "split": apply(topi.split, _SHAPE, indices_or_sections=[5, 12], axis=1),
        "split_of_exp": apply(lambda x: topi.split(topi.exp(x), 4, axis=1), (12, 20)),
        "strided_slice": apply(
            topi.strided_slice, _SHAPE, begin=[1, 2, 0], end=[11, 19, 15], strides=[2, 3, 1]
        ),
        "slice_back": apply(
            topi.strided_slice, _SHAPE, begin=[0, 19, 0], end=[12, 0, 15], strides=[1, -2, 1]
        ),
        "trilu": apply(lambda x: topi.trilu(x, tirx.const(0, "int32"), True), (20, 20)),
        "one_hot": apply(
            lambda x: topi.one_hot(x, 1.0, 0.0, 10, -1, "float32"), (12,), dtype="int32"
        ),
        "sequence_mask": apply(
            topi.sequence_mask, (12, 5), (5,), dtypes=["float32", "int32"], mask_value=0.0, axis=0
        ),
        "matrix_set_diag": apply(lambda x, d: topi.matrix_set_diag(x, d), (3, 12, 12), (3, 12)),
        "sliding_window": apply(
            topi.sliding_window, (2, 20, 15), axis=1, window_shape=[3, 3], strides=[1, 2]
        ),
    }


def _gathers() -> dict[str, Builder]:
    kinds = ["float32", "int32"]
    return {
        "take": apply(topi.take, (50, 24), (13,), dtypes=kinds, axis=0),
        "take_clip": apply(topi.take, (50, 24), (13,), dtypes=kinds, axis=0, mode="clip"),
        "embedding": apply(topi.take, (50, 24), (3, 13), dtypes=kinds, axis=0, mode="fast"),
        "gather": apply(lambda x, i: topi.gather(x, 1, i), (12, 20), (12, 5), dtypes=kinds),
        "gather_nd": apply(topi.gather_nd, (12, 20, 5), (2, 9), dtypes=kinds),
        "unravel_index": apply(topi.unravel_index, (13,), (2,), dtype="int32"),
        "sparse_to_dense": apply(
            lambda i, v: topi.sparse_to_dense(i, [20], v, 0.0),
            (5,),
            (5,),
            dtypes=["int32", "float32"],
        ),
        "scatter_elements": apply(
            lambda x, i, u: topi.scatter_elements(x, i, u, 0, "update"),
            (12,),
            (5,),
            (5,),
            dtypes=["float32", "int32", "float32"],
        ),
        "adv_index": apply(lambda x, i: topi.adv_index(x, [i]), (50, 24), (13,), dtypes=kinds),
    }


def _images() -> dict[str, Builder]:
    def resize(
        method: str,
        rounding: str = "round",
        transform: str = "half_pixel",
        size: tuple[int, int] = (24, 28),
    ) -> Builder:
        return apply(
            topi.image.resize2d,
            _IMAGE,
            roi=(0.0, 0.0, 0.0, 0.0),
            size=size,
            method=method,
            rounding_method=rounding,
            coordinate_transformation_mode=transform,
        )

    return {
        "resize_nearest": resize("nearest_neighbor", "floor", "asymmetric"),
        "resize_nearest_round": resize("nearest_neighbor"),
        "resize_nearest_odd": resize("nearest_neighbor", size=(17, 31)),
        "resize_linear": resize("linear"),
        "resize_linear_corners": resize("linear", transform="align_corners", size=(17, 31)),
        "resize_cubic": resize("cubic"),
        "resize1d": apply(topi.image.resize1d, (1, 8, 15), roi=(0.0, 0.0), size=[31]),
        "resize3d": apply(
            topi.image.resize3d,
            (1, 2, 5, 6, 7),
            roi=(0.0,) * 6,
            size=(10, 12, 14),
            method="nearest_neighbor",
            rounding_method="floor",
            coordinate_transformation_mode="asymmetric",
        ),
        "upsampling": apply(topi.nn.upsampling, _IMAGE, scale_h=2, scale_w=2),
        "upsampling_bilinear": apply(
            topi.nn.upsampling, _IMAGE, scale_h=2, scale_w=2, method="bilinear"
        ),
        "affine_grid": apply(topi.image.affine_grid, (2, 2, 3), target_shape=(8, 9)),
        "grid_sample": apply(topi.image.grid_sample, _IMAGE, (1, 2, 5, 6)),
        "crop_and_resize": apply(
            topi.image.crop_and_resize,
            _IMAGE,
            (3, 4),
            (3,),
            dtypes=["float32", "float32", "int32"],
            crop_size=(6, 6),
            layout="NCHW",
            extrapolation_value=0.0,
        ),
        "pixel_shuffle": apply(pixel_shuffle.pixel_shuffle, _IMAGE, upscale_factor=2),
    }
