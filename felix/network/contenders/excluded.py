"""Which contenders of a group are wrong: those whose result is not the reference's.

All contenders get the same inputs. Where their results agree, they are right: PyTorch's operators
and TVM's programs were made independently. Where two differ, or PyTorch's is alone, the group's
unscheduled program decides, computed on the CPU, which sums in order. A contender is right if its
error is within the tolerance of networks (`agreement`) for the types of inputs and result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from felix import errors
from felix.builder import task_program
from felix.network import agreement, executable, imported
from felix.network.contenders.shipping import Contender
from felix.runner.checking import reference
from felix.task import Task
from felix.workloads import torch_forms

#: A contender's program: tensors to the result.
Main: TypeAlias = Callable[..., Any]
#: What PyTorch's functions raise for arguments that they do not take, or without memory for them.
TORCH_ERRORS = (RuntimeError, TypeError, ValueError, IndexError)
_SEED = 0
_NAMES = {
    Contender.FELIX: "Felix",
    Contender.TVM: "TVM's default schedule",
    Contender.PYTORCH: "PyTorch",
}


def inputs(task: Task, *, positive: bool = False) -> list[torch.Tensor]:
    """Random inputs of a task, on its device."""
    arguments = task_program.arguments(task.mod)
    arrays = reference.inputs(arguments, _SEED, positive=positive)
    place = imported.device_of(task.target)
    return [
        executable.as_stored(torch_forms.tensor(array).to(place))
        for array, argument in zip(arrays, arguments, strict=True)
        if argument.is_input
    ]


#: What gives inputs and the right result for them.
Reference: TypeAlias = Callable[[], tuple[Sequence[torch.Tensor], torch.Tensor]]


def of_task(task: Task, drawn: Sequence[torch.Tensor]) -> Check:
    """A check of contenders of a task; `drawn` are the inputs of `inputs`."""

    def decide() -> tuple[Sequence[torch.Tensor], torch.Tensor]:
        arguments = task_program.arguments(task.mod)
        run = task_program.on_cpu(task.mod, task.target, arguments)
        outputs, tensors = run(_SEED, False), drawn
        if not reference.all_finite(outputs, arguments):
            outputs, tensors = run(_SEED, True), inputs(task, positive=True)
        (array,) = outputs.values()
        return tensors, torch_forms.tensor(array)

    return Check(drawn, decide, allow_tf32=task.allows_tf32)


class Check:
    """Compares contenders with each other, and where they differ with the reference.

    Args:
        drawn: inputs.
        decide: computes the reference, if it is needed.
        allow_tf32: whether products of float32 may be computed in TF32.
        names: of the contenders, for people.
    """

    def __init__(
        self,
        drawn: Sequence[torch.Tensor],
        decide: Reference,
        *,
        allow_tf32: bool,
        names: Mapping[Contender, str] = _NAMES,
    ) -> None:
        self._inputs = drawn
        self._decide = decide
        self._allow_tf32 = allow_tf32
        self._names = names
        self._expected: torch.Tensor | None = None

    def wrong(self, mains: Mapping[Contender, Main]) -> dict[Contender, str]:
        """Why contenders are none, by name. The reference is computed if it is needed."""
        results, wrong = self._results(mains)
        if self._expected is None:
            is_alone = set(results) == {Contender.PYTORCH}
            if not results:
                return wrong
            first, *others = results.values()
            same = [first] * len(others)
            if not is_alone and agreement.agree(others, same, self._limit(first)):
                return wrong
            self._inputs, self._expected = self._decide()
            results, wrong = self._results(mains)
        limit = self._limit(self._expected)
        for name, result in results.items():
            error = agreement.difference(result.cpu(), self._expected, limit == 0)
            if not error <= limit:
                wrong[name] = (
                    f"{self._names[name]}'s result differs from the reference's: relative error "
                    f"{error:.1e}, tolerance {limit:.1e}"
                )
        return wrong

    def _results(
        self, mains: Mapping[Contender, Main]
    ) -> tuple[dict[Contender, torch.Tensor], dict[Contender, str]]:
        """Results, and why PyTorch's operators have none."""
        results: dict[Contender, torch.Tensor] = {}
        failed: dict[Contender, str] = {}
        for name, main in mains.items():
            try:
                results[name] = executable.as_tensor(main(*self._inputs))
            except TORCH_ERRORS as error:
                if name is not Contender.PYTORCH:
                    raise
                line = (str(error).strip().splitlines() or [type(error).__name__])[-1]
                failed[name] = f"PyTorch does not run it: {line}"
        return results, failed

    def _limit(self, result: torch.Tensor) -> float:
        dtypes = {result.dtype, *(each.dtype for each in self._inputs)}
        return agreement.tolerance(dtypes, self._allow_tf32)


def check_left(of: str, mains: Mapping[Contender, Main], wrong: Mapping[Contender, str]) -> None:
    """Nothing, if a contender is left; `of` says whose they are.

    Raises:
        TuningError: all are wrong.
    """
    if not set(mains) <= set(wrong):
        return
    raise errors.TuningError(
        f"no program {of} is right here: {'; '.join(wrong.values())}. Nothing "
        "ships; please report this"
    )
