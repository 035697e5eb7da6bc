"""What a measurer promises.

- A measurement is a latency or an error class (`felix.runner.protocol`).
- `submit` returns at once; its future resolves whatever the candidate does. A candidate that
  crashes, hangs or computes something else costs itself and no other candidate.
- `submit` may be called from any thread; futures may resolve in any order. A future that has
  not started can be cancelled.
- A `thorough` submission is a burst of repeats whatever its rank, for the few candidates that
  decide a run: submitted several times in turns, and pooled by `tuning.remeasure`.
- `close` ends every process the measurer started and may be called twice.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Protocol, Self

from felix.runner.protocol import Measurement

if TYPE_CHECKING:
    from felix.builder.payload import Buildable


class Measurer(Protocol):
    """Builds, checks and times candidates; see the module docstring for the contract.

    What implements it inherits from it, and has `submit` and `close`.
    """

    @abc.abstractmethod
    def submit(self, program: Buildable, thorough: bool = False) -> Future[Measurement]:
        """Queue one scheduled module or generated program, or either as text: of several tasks on
        a GPU, processes that search make programs (`payload.read` reads one).

        Raises:
            MeasureError: a program in CUDA C++ where candidates run on a CPU.
        """

    def measure(self, programs: Sequence[Buildable]) -> list[Measurement]:
        """Measure all and wait; results in the order of `programs`."""
        return [future.result() for future in [self.submit(program) for program in programs]]

    @abc.abstractmethod
    def close(self) -> None:
        """Stop and end all processes."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
