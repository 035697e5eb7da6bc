"""Small networks, and a pool that measures without processes, for tests of whole networks."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import tvm
from torch import nn

import felix
from felix import target as targets
from felix.measure import locks
from felix.measure.measurer import Measurer
from felix.network import executable, groups, imported, in_turns
from felix.network.contenders.shipping import Contender
from felix.network.optimized import OptimizedNetwork
from felix.runner import protocol
from felix.runner.calls import cpu_calls
from felix.search import gradient
from felix.task import Task
from felix.tuning import options
from tests.support.function_measurer import FunctionMeasurer

#: What the pool says of an unscheduled program.
UNSCHEDULED_US = 5000.0
TARGET = "llvm -num-cores 2"


class Pool:
    """Answers every candidate with `latency_of`; `n_measured` counts those with a schedule."""

    is_idle = True
    unconfined = None

    def __init__(
        self, latency_of: Callable[[Any, Task], float | protocol.ErrorClass] | None = None
    ) -> None:
        self.timing_lock = locks.ReadWriteLock()
        self.n_devices = 1
        #: GPUs that a command chose
        self.devices: tuple[int, ...] | str = ()
        self.n_measured = 0
        self._latency_of = latency_of or (lambda program, task: 10.0)

    def for_task(self, task: Task) -> Measurer:
        def measure(program: Any) -> float | protocol.ErrorClass:
            if program.script() == task.mod.script():
                return UNSCHEDULED_US
            self.n_measured += 1
            return self._latency_of(program, task)

        return FunctionMeasurer(measure)

    def close(self) -> None:
        """Nothing to end."""


def tune_options(pool: Pool, **changes: Any) -> options.TuneOptions:
    """Quick rounds without processes."""
    sizes = gradient.GradientOptions(n_samples=8, n_before=0, n_polish=0, n_structures=0)
    defaults: dict[str, Any] = {
        "round_size": 4,
        "first_round_size": 2,
        "n_remeasured": 0,
        "remeasure_pause_s": 0.0,
        "learn": False,
        "search": sizes,
        "pool": lambda task: pool,
    }
    return options.TuneOptions(**(defaults | changes))


def optimize(
    model: Any, inputs: Any, folder: pathlib.Path, pool: Pool | None = None, **arguments: Any
) -> OptimizedNetwork:
    """`felix.optimize` with a fake pool and known results of the test's own."""
    defaults = {
        "trials": 4,
        "target": TARGET,
        "known_results": folder / "known.sqlite",
        "options": tune_options(pool or Pool()),
        "pytorch": False,
    }
    return felix.optimize(model, inputs, **(defaults | arguments))


def timed_contenders(monkeypatch: pytest.MonkeyPatch, pytorch_us: float) -> list[set[Contender]]:
    """Contenders that were timed; PyTorch's take so long, others 10 us. As a whole a network
    takes half as long as its model."""
    log: list[set[Contender]] = []

    def in_turns_us(calls: Any, inputs: Any, turns: int, burst: int, max_ratio: float) -> Any:
        log.append(set(calls))
        for call in calls.values():
            call()
        return {name: [pytorch_us if name is Contender.PYTORCH else 10.0] for name in calls}

    monkeypatch.setattr(cpu_calls, "in_turns_us", in_turns_us)
    timed_wholes(monkeypatch, 0.5)
    return log


def timed_wholes(monkeypatch: pytest.MonkeyPatch, *ratios: float) -> None:
    """Whole calls of Felix take so many times as long as others, which take 20 us: each time that
    they are timed another ratio, the last one from then on."""
    left = list(ratios)

    def latencies_us(calls: Any, ours: Any, *, is_gpu: bool, budget_s: float = 1.0) -> Any:
        ratio = left.pop(0) if len(left) > 1 else left[0]
        for call in calls.values():
            call()
        return {name: [20.0 * ratio if name == ours else 20.0] * 10 for name in calls}

    monkeypatch.setattr(in_turns, "latencies_us", latencies_us)


class Perceptron(nn.Module):
    """Two layers with GELU, and keyword arguments."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(
        self, x: torch.Tensor, *, scale: torch.Tensor, skip: bool = False
    ) -> dict[str, Any]:
        """A structure of tensors and None."""
        y = self.down(nn.functional.gelu(self.up(x))) * scale
        return {"y": y + x if skip else y, "state": (x * 2.0, None)}


class Placed(nn.Module):
    """A product of eight tokens with the embeddings of their places, which are constants."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embedding, self.linear = nn.Embedding(8, width), nn.Linear(width, width)
        self.register_buffer("places", torch.arange(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The activations of each token."""
        return torch.relu(self.linear(x + self.embedding(self.places)))


class Convolutions(nn.Module):
    """Convolutions with batch norm; two layers are alike."""

    def __init__(self, channels: int = 4) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels))
            for _ in range(2)
        )

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The last activations and their means."""
        x = torch.relu(self.first(x))
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x, x.mean((2, 3))


class Paths(nn.Module):
    """Chains of products from one tensor, which meet in the end; a result is a view."""

    def __init__(self, n_paths: int, length: int, width: int = 16) -> None:
        super().__init__()
        chains = ([nn.Linear(width, width) for _ in range(length)] for _ in range(n_paths))
        self.paths = nn.ModuleList(nn.Sequential(*chain) for chain in chains)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The softmax of the paths' results, and these."""
        y = torch.cat([path(x) for path in self.paths], dim=1)
        return y.softmax(dim=1).reshape(-1), y


class Block(nn.Module):
    """Attention and a perceptron, with normalisation, over tokens whose embedding is tied."""

    def __init__(self, width: int = 16, heads: int = 2, tokens: int = 11) -> None:
        super().__init__()
        self.heads = heads
        self.embedding = nn.Embedding(tokens, width)
        self.norm = nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.head = nn.Linear(width, tokens, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores of the next tokens."""
        x = self.embedding(tokens)
        batch, length, width = x.shape
        q, k, v = (
            each.reshape(batch, length, self.heads, -1).transpose(1, 2)
            for each in self.qkv(self.norm(x)).chunk(3, -1)
        )
        scores = torch.softmax(q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5, -1)
        attended = (scores @ v).transpose(1, 2).reshape(batch, length, width)
        return self.head(x + self.out(attended))


def outputs(network: imported.Network, mod: tvm.IRModule) -> list[torch.Tensor]:
    """The outputs of a network's module, built as it is, on its examples."""
    return built(network, mod)(list(network.examples))


def built(network: imported.Network, mod: tvm.IRModule | None = None) -> executable.Executable:
    """A network's module, by default as it was lowered, built as it is."""
    parameters = network.imported.parameters
    return executable.build(mod or network.lowered, network.target, parameters)


def of_one_group(
    model: Any, *inputs: torch.Tensor, target: str = TARGET
) -> tuple[imported.Network, groups.Group]:
    """A model's network, whose calls are all of one program that can be tuned."""
    network = imported.read(model, inputs, {}, targets.parse(target))
    (group,) = groups.of(network.lowered, network.target)
    assert group.task is not None
    return network, group


def assert_close(actual: Any, expected: Any) -> None:
    """Outputs are equal but for rounding of float32."""
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def assert_same(fast: Any, model: Any, *inputs: Any, **keywords: Any) -> None:
    """A call without gradients gives what the model's does."""
    with torch.no_grad():
        assert_close(fast(*inputs, **keywords), model(*inputs, **keywords))
