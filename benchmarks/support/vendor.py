"""Vendor libraries on the benchmark's subgraphs, through PyTorch: eager, and compiled.

cuBLAS, cuDNN and PyTorch's own kernels (eager), and inductor's (`torch.compile`, with autotuning),
all with TF32 off. A call is timed as Felix times a candidate: between events, after a buffer of
twice the L2 was read, which leaves the cache cold and clean; a delay queued ahead lets the CPU
put the call on the stream before the first event happens. The median of many calls counts.
Convolutions are timed with channels last, as the workloads have them, and with channels first;
the better one counts.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

LAST, FIRST = "channels last", "channels first"
_CALLS = 50
#: The CPU needs up to 0.1 ms to launch a call; this is half a millisecond.
_DELAY_CYCLES = 1_000_000


def latencies_us(workload: str) -> dict[str, dict[str, float]]:
    """Median latencies in us by layout: "eager" and "inductor"."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    latencies = {}
    for layout in layouts(workload):
        torch.compiler.reset()
        function, inputs = program(workload, "cuda", layout)
        compiled = torch.compile(function, mode="max-autotune-no-cudagraphs", dynamic=False)
        latencies[layout] = {"eager": _time(function, inputs), "inductor": _time(compiled, inputs)}
    return latencies


def best(by_layout: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The best latency of each kind over the layouts."""
    kinds = next(iter(by_layout.values()))
    return {kind: min(times[kind] for times in by_layout.values()) for kind in kinds}


def layouts(workload: str) -> tuple[str, ...]:
    """The layouts of its tensors to try; one, where there are no channels."""
    from felix.workloads import catalogue

    operator, _ = catalogue.parse_params(workload)
    return (LAST, FIRST) if "conv" in operator else (LAST,)


def program(
    workload: str, device: str, layout: str = LAST
) -> tuple[Callable[..., Any], list[Any]]:
    """The workload as a PyTorch function, and inputs for it, convolutions' in a layout.

    Raises:
        ValueError: an operator or option that no subgraph of the benchmark uses.
    """
    from felix.workloads import catalogue

    operator, params = catalogue.parse_params(workload)
    makers = {"gemm": _gemm, "conv2d": _conv, "conv3d": _conv, "depthwise_conv2d": _depthwise,
              "conv_transpose2d": _transposed, "softmax": _rows, "layer_norm": _rows,
              "reduce": _rows}  # fmt: skip
    if operator not in makers:
        raise ValueError(f"no PyTorch form of {operator}")
    function, inputs = makers[operator](operator, dict(params), device)
    if layout == LAST and "conv" in operator:
        inputs = [_channels_last(tensor) for tensor in inputs]
    return function, inputs


def _random(device: str, *shape: int) -> Any:
    import torch

    return torch.randn(*shape, device=device)


def _channels_last(tensor: Any) -> Any:
    import torch

    last = torch.channels_last_3d if tensor.ndim == 5 else torch.channels_last
    return tensor.contiguous(memory_format=last)


def _gemm(operator: str, params: dict[str, Any], device: str) -> tuple[Any, list[Any]]:
    import torch

    batch = [params["batch"]] if params.get("batch") else []
    m, n, k = params["m"], params["n"], params["k"]
    _only(params, {"m", "n", "k", "batch"})
    return torch.matmul, [_random(device, *batch, m, k), _random(device, *batch, k, n)]


def _conv(operator: str, params: dict[str, Any], device: str) -> tuple[Any, list[Any]]:
    import torch

    rank = 3 if operator == "conv3d" else 2
    spatial = [params[axis] for axis in ("d", "h", "w")[3 - rank :]]
    kernel, ci, co = params["kernel"], params["ci"], params["co"]
    _only(params, {"n", "d", "h", "w", "ci", "co", "kernel", "stride", "padding"})
    convolve = torch.nn.functional.conv3d if rank == 3 else torch.nn.functional.conv2d
    x = _random(device, params["n"], ci, *spatial)
    w = _random(device, co, ci, *[kernel] * rank)
    stride, padding = params.get("stride", 1), params.get("padding", 0)
    return lambda x, w: convolve(x, w, stride=stride, padding=padding), [x, w]


def _depthwise(operator: str, params: dict[str, Any], device: str) -> tuple[Any, list[Any]]:
    import torch

    _only(params, {"n", "h", "w", "c", "kernel", "stride", "padding"})
    c, kernel = params["c"], params["kernel"]
    x = _random(device, params["n"], c, params["h"], params["w"])
    w = _random(device, c, 1, kernel, kernel)
    stride, padding = params.get("stride", 1), params.get("padding", 0)
    convolve = torch.nn.functional.conv2d
    return lambda x, w: convolve(x, w, stride=stride, padding=padding, groups=c), [x, w]


def _transposed(operator: str, params: dict[str, Any], device: str) -> tuple[Any, list[Any]]:
    import torch

    _only(params, {"n", "h", "w", "ci", "co", "kernel", "stride", "padding"})
    ci, kernel = params["ci"], params.get("kernel", 4)
    x = _random(device, params["n"], ci, params["h"], params["w"])
    w = _random(device, ci, params["co"], kernel, kernel)
    stride, padding = params.get("stride", 2), params.get("padding", 1)
    convolve = torch.nn.functional.conv_transpose2d
    return lambda x, w: convolve(x, w, stride=stride, padding=padding), [x, w]


def _rows(operator: str, params: dict[str, Any], device: str) -> tuple[Any, list[Any]]:
    import torch

    shape = params["shape"]
    x = _random(device, *shape)
    if operator == "softmax":
        return lambda x: torch.softmax(x, dim=-1), [x]
    if operator == "reduce":
        axes = params.get("axes")
        return lambda x: torch.sum(x, dim=None if axes is None else list(axes)), [x]
    gain, shift = _random(device, shape[-1]), _random(device, shape[-1])
    norm = torch.nn.functional.layer_norm
    return lambda x, gain, shift: norm(x, [shape[-1]], gain, shift), [x, gain, shift]


def _only(params: dict[str, Any], known: set[str]) -> None:
    if set(params) - known:
        raise ValueError(f"no PyTorch form with {sorted(set(params) - known)}")


def _time(function: Callable[..., Any], inputs: list[Any]) -> float:
    import torch

    l2_bytes = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    swept = torch.zeros(2 * l2_bytes // 4, dtype=torch.float32, device="cuda")
    for _ in range(5):
        function(*inputs)
        swept.sum()
    events = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
        for _ in range(_CALLS)
    ]
    torch.cuda.synchronize()
    for start, end in events:
        torch.cuda._sleep(_DELAY_CYCLES)
        swept.sum()
        start.record()
        function(*inputs)
        end.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in events) * 1e3
