"""What `torch.compile(model, backend="felix")` calls, and the report on what it did.

Importing this module is light: TVM loads when the first graph comes.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from felix.network.backend import settings

if TYPE_CHECKING:
    import torch

    from felix.network.backend import background, graphs, report

_TRAINING = (
    "felix: a graph that computes gradients runs in PyTorch; tuned programs run where none are "
    "computed: under torch.no_grad() or torch.inference_mode()"
)


class Backend:
    """A backend of `torch.compile`. It refers to its graphs as long as PyTorch uses them."""

    def __init__(self) -> None:
        self.__name__ = "felix"  # for PyTorch's messages
        self._graphs: weakref.WeakSet[graphs.CompiledGraph] = weakref.WeakSet()
        self._n_graphs = 0
        self._background: background.Background | None = None

    def __call__(
        self,
        graph: torch.fx.GraphModule,
        example_inputs: Sequence[Any],
        *,
        mode: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Callable[..., Any]:
        """The callable that runs a graph of `torch._dynamo`; its first call builds it.

        Raises:
            TuningError: options that there are not.
            TargetError: an unknown target.
        """
        chosen = settings.read(mode, options)
        from felix import target
        from felix.network.backend import graphs, tracing

        if chosen.target is not None:
            target.parse(chosen.target)
        self._n_graphs += 1
        reason = "it computes gradients" if tracing.computes_gradients(graph) else None
        if reason is not None:
            warnings.warn(_TRAINING, stacklevel=1)
        behind = None if chosen.seconds is None else self._behind()
        compiled = graphs.CompiledGraph(graph, chosen, self._n_graphs, reason, behind)
        self._graphs.add(compiled)
        return compiled

    def _behind(self) -> background.Background:
        from felix.network.backend import background

        if self._background is None:
            self._background = background.Background()
        return self._background

    def report(self) -> report.BackendReport:
        """What runs of each graph that PyTorch uses, in the order of compilation."""
        from felix.network.backend import report

        every = sorted((each.report() for each in self._graphs), key=lambda each: each.number)
        status = None if self._background is None else self._background.status
        return report.BackendReport(tuple(every), status)

    def reset(self) -> None:
        """Forget the graphs and end what is done for them; `torch._dynamo.reset` calls this."""
        if self._background is not None:
            self._background.close()
            self._background = None
        self._graphs.clear()
        self._n_graphs = 0


#: The entry point of the group `torch_dynamo_backends`.
backend = Backend()


def backend_report() -> report.BackendReport:
    """What `torch.compile(..., backend="felix")` did in this process; print it.

    For each graph: which parts Felix runs, which PyTorch, and why; and how many tasks wait in the
    queue for `felix tune --queued`. `torch._dynamo.reset()` begins anew.
    """
    return backend.report()
