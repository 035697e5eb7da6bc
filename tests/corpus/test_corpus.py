"""A fast part of the corpus: one program of each form that once failed, on both targets.

All of it: `python -m benchmarks.corpus`.
"""

from __future__ import annotations

import pytest

from tests.corpus import outcome
from tests.support import share

MODELLED = (
    "add_of_add", "gelu", "bitwise_xor_int32", "shift_and_mask", "sum_of_sum", "mean_and_variance",
    "log_softmax", "reshape_mixed", "depth_to_space", "upsampling", "resize_cubic", "mirror_pad",
    "replicate_pad", "sparse_to_dense", "concatenate_itself", "compute_named_root", "diamond",
    "large_extents", "take", "gather", "argmax", "fast_exp", "floor_divide_int32",
    "left_shift_int32", "adaptive_uneven", "tir_two_stores", "tir_sum_and_squares", "dense_int8",
    "dense_bfloat16_in_float32", "large_conv1d_of_data", "large_neighbours", "pool_pool",
    "tir_masked_index", "tir_two_halves", "tir_sum_and_count",
    "tir_two_sums", "tir_variable_offset", "tir_variable_offsets", "tir_strides_of_its_shape",
)  # fmt: skip
#: Programs that are refused, with a part of the reason.
REFUSED = {
    "argsort": "in place of iterators",
    "blockized_product": "give the program before blockize",
    "cumsum": "in place of iterators",
    "grid_sample": "is not proved to fit int32",
    "input_twice": "declared twice",
    "scatter_nd": "in place of iterators",
    "tir_begins_with_branches": "must be one store",
    "tir_block_in_a_block": "blocks in blocks are not supported",
    "tir_constant_offset": "give it the element offset 0",
    "tir_fused_binding": "give each iterator a loop of its own",
    "tir_strided": "give it the shape of its memory",
    "tir_without_beginning": "give it T.init",
    "topk": "in place of iterators",
}


@pytest.mark.parametrize("name, target", share.crossed(MODELLED, outcome.TARGETS))
def test_a_program_is_modelled_as_tvm_schedules_it(name: str, target: str) -> None:
    result = outcome.of(name, target, rows=1)
    assert (result.kind, result.message) == (outcome.Kind.MODELLED, "")
    assert result.rows > 0 and result.invalid == 0


def test_float8_is_modelled_on_cuda_alone() -> None:
    on_cpu, on_gpu = (outcome.of("dense_float8_e4m3fn", each, rows=1) for each in outcome.TARGETS)
    assert on_cpu.kind is outcome.Kind.REFUSED and "for cuda alone" in on_cpu.message
    assert (on_gpu.kind, on_gpu.message, on_gpu.invalid) == (outcome.Kind.MODELLED, "", 0)


@pytest.mark.parametrize("target", outcome.TARGETS)
@pytest.mark.parametrize("name", REFUSED)
def test_a_program_that_is_refused_is_refused_in_one_sentence(name: str, target: str) -> None:
    result = outcome.of(name, target, rows=1)
    assert result.kind is outcome.Kind.REFUSED and REFUSED[name] in result.message
    assert "\n" not in result.message


def test_a_name_is_that_of_one_program() -> None:
    modules = (
        outcome.elementwise,
        outcome.contractions,
        outcome.reductions,
        outcome.layouts,
        outcome.families,
        outcome.large,
        outcome.written,
        outcome.scripts,
    )
    assert sum(len(module.programs()) for module in modules) == len(outcome.PROGRAMS) >= 400
