"""How large results are: few of them may be small by chance, and wrong kernels are still found."""

from __future__ import annotations

import numpy as np
import pytest

from felix import workloads
from felix.measure import task_program
from felix.measure.checking import reference
from felix.measure.checking.reference import Array

#: Terms of a sum whose value is small under this seed: a 25th of what such sums usually are.
TERMS, SEED = 1_000_003, 2


def _sum_task() -> tuple[reference.Expected, Array, float]:
    """The reference of a sum to one value, its terms, its tolerance."""
    task = workloads.parse(f"reduce:{TERMS},axes=0,kind=sum", "llvm")
    args = task_program.arguments(task.mod)
    run = task_program.on_cpu(task.mod, task.target, args)
    terms = reference.inputs(args, SEED, positive=False)[0]
    return reference.compute(run, args, SEED), terms, task_program.tolerance(task.mod)


def _partial_sums(terms: Array) -> Array:
    """Sums of 1,024 terms each, as parallel kernels add them."""
    padded = np.pad(terms, (0, -terms.size % 1024))
    return padded.reshape(-1, 1024).sum(axis=1, dtype=np.float32)


def test_a_right_kernel_passes_where_the_terms_cancel() -> None:
    checked, terms, relative = _sum_task()
    output, size = checked.outputs[1], checked.rms[1]
    right = _partial_sums(terms).sum(dtype=np.float32)
    assert abs(float(output)) < 50 and size == pytest.approx(TERMS**0.5, rel=0.3)
    assert reference.mismatch(np.array(right), output, relative) is not None
    assert reference.mismatch(np.array(right), output, relative, size) is None


def test_wrong_kernels_are_refused_where_the_terms_cancel() -> None:
    checked, terms, relative = _sum_task()
    partial = _partial_sums(terms)
    wrong = {
        "a term left out": terms.sum(dtype=np.float64) - terms[np.abs(terms) > 1][0],
        "a slice left out": partial.sum() - terms[:64].sum(),
        "a partial sum counted twice": partial.sum() + partial[5],
        "a partial sum lost": partial.sum() - partial[5],
        "the last terms left out": terms[: TERMS // 64 * 64].sum(dtype=np.float64),
    }
    for name, value in wrong.items():
        actual = np.array(value, np.float32)
        message = reference.mismatch(actual, checked.outputs[1], relative, checked.rms[1])
        assert message is not None, name


def test_a_result_that_an_epilogue_cuts_off_has_the_size_of_others() -> None:
    task = workloads.gemm(1, 1, 4096, epilogue=("relu",), target="llvm")
    args = task_program.arguments(task.mod)
    run = task_program.on_cpu(task.mod, task.target, args)
    seed = next(s for s in range(20) if float(run(s, False)[2].item()) == 0.0)
    checked = reference.compute(run, args, seed)
    assert checked.outputs[2].item() == 0.0 and 20 < checked.rms[2] < 90
    relative = task_program.tolerance(task.mod)
    rounded = np.full((1, 1), 1e-5, np.float32)
    assert reference.mismatch(rounded, checked.outputs[2], relative, checked.rms[2]) is None
    wrong = np.full((1, 1), 0.5, np.float32)
    assert reference.mismatch(wrong, checked.outputs[2], relative, checked.rms[2]) is not None


class _Runs:
    """A program of one output of some elements that notes what it is run for."""

    def __init__(self, count: int, dtype: str = "float32") -> None:
        self.calls: list[tuple[int, bool]] = []
        self._count, self._dtype = count, dtype

    def __call__(self, seed: int, positive: bool) -> dict[int, Array]:
        self.calls.append((seed, positive))
        return {1: np.full(self._count, 1 + seed % 2, self._dtype)}

    def args(self, inputs: int) -> list[reference.Argument]:
        return [
            reference.Argument("x", self._dtype, (inputs,), is_input=True, is_output=False),
            reference.Argument("y", self._dtype, (self._count,), is_input=False, is_output=True),
        ]


@pytest.mark.parametrize(
    ("count", "inputs", "dtype", "runs"),
    [
        (16, 8, "float32", 1),
        (5, 8, "float32", 4),
        (1, 8, "float32", 16),
        (1, 2**24, "float32", 5),
        (1, 2**30, "float32", 4),
        (1, 8, "int32", 1),
    ],
)
def test_few_results_are_computed_for_more_inputs(
    count: int, inputs: int, dtype: str, runs: int
) -> None:
    run = _Runs(count, dtype)
    checked = reference.compute(run, run.args(inputs), seed=6)
    assert run.calls == [(6 + i, False) for i in range(runs)]
    values = [1 + call[0] % 2 for call in run.calls]
    assert checked.outputs[1].tolist() == [1] * count
    size = float(np.sqrt(np.mean(np.square(values)))) if dtype == "float32" else 0.0
    assert checked.rms == {1: pytest.approx(size)}


def test_positive_inputs_are_taken_for_every_draw() -> None:
    run = _Runs(8)

    def infinite(seed: int, positive: bool) -> dict[int, Array]:
        outputs = run(seed, positive)
        return outputs if positive else {1: outputs[1] * np.inf}

    checked = reference.compute(infinite, run.args(8), seed=0)
    assert checked.positive and run.calls == [(0, False), (0, True), (1, True)]
