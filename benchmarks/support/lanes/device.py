"""Who has the GPU in a run of two lanes: the lock that measuring pools take, and waits for it.

The lane of the libraries has the lock in all that it does on the GPU. Compiling by inductor is
work of CPUs but for benchmarking choices of kernels and of fusions, so there the lock is let go in
`compile_fx` and taken in the benchmarks within. All are private to PyTorch: where one of them is
missing, the lock is held all the time.
"""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol
from unittest import mock

#: Where inductor compiles: a module and what leads from it to a function.
COMPILES = ("torch._inductor.compile_fx", "compile_fx")
#: Where it makes the benchmark of the choices of a kernel, and where it runs that of a fusion.
CHOOSES = ("torch._inductor.select_algorithm", "AlgorithmSelectorCache", "make_benchmark_fn")
FUSES = ("torch._inductor.codegen.triton", "TritonScheduling", "benchmark_codegened_module")

Function = Callable[..., Any]


class Lock(Protocol):
    """A `device_lock.DeviceLock`."""

    def acquire(self) -> None: ...
    def release(self) -> None: ...


class Turn:
    """The GPU's lock for one process: taken and let go in nested blocks; seconds of it."""

    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        self._has = False
        self._since = 0.0
        self.held_s = 0.0

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """The block has the GPU."""
        with self._set(True):
            yield

    @contextlib.contextmanager
    def let_go(self) -> Iterator[None]:
        """The block does not need the GPU."""
        with self._set(False):
            yield

    @contextlib.contextmanager
    def _set(self, has: bool) -> Iterator[None]:
        before = self._has
        self._change(has)
        try:
            yield
        finally:
            self._change(before)

    def _change(self, has: bool) -> None:
        if has == self._has:
            return
        if has:
            self._lock.acquire()
            self._since = time.monotonic()
        else:
            self._wait_for_gpu()
            self.held_s += time.monotonic() - self._since
            self._lock.release()
        self._has = has

    def _wait_for_gpu(self) -> None:
        """What was queued is done before another one has the GPU."""
        import torch

        if torch.cuda.is_initialized():
            torch.cuda.synchronize()


@contextlib.contextmanager
def shared_while_compiling(turn: Turn) -> Iterator[bool]:
    """In the block inductor lets the lock go where it only compiles; whether it can."""

    def alone(benchmark: Function) -> Function:
        def with_lock(*args: Any, **kwargs: Any) -> Any:
            with turn.taken():
                return benchmark(*args, **kwargs)

        return with_lock

    def for_others(compiling: Function) -> Function:
        def without_lock(*args: Any, **kwargs: Any) -> Any:
            with turn.let_go():
                return compiling(*args, **kwargs)

        return without_lock

    def made_alone(making: Function) -> Function:
        return lambda *args, **kwargs: alone(making(*args, **kwargs))

    changes = {COMPILES: for_others, CHOOSES: made_alone, FUSES: alone}
    places = {place: _place(place) for place in changes}
    with contextlib.ExitStack() as patches:
        for place, change in changes.items():
            if (owner := places[place]) is not None and None not in places.values():
                changed = _changed(vars(owner)[place[-1]], change)
                patches.enter_context(mock.patch.object(owner, place[-1], changed))
        yield None not in places.values()


def _place(place: tuple[str, ...]) -> Any:
    """The module or class whose attribute a function is; None if there is none."""
    module, *path = place
    try:
        owner: Any = importlib.import_module(module)
        for name in path[:-1]:
            owner = getattr(owner, name)
    except (ImportError, AttributeError):
        return None
    return owner if path[-1] in vars(owner) else None


def _changed(function: Any, change: Callable[[Function], Function]) -> Any:
    """A function, or that of a class or without an instance, as `change` makes it."""
    if isinstance(function, classmethod | staticmethod):
        return type(function)(change(function.__func__))
    return change(function)


class Waits:
    """Seconds that this process waited for devices' locks."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Count in the block, of all threads."""
        from felix.measure.pool.locks import device_lock

        acquire: Callable[[device_lock.DeviceLock], None] = device_lock.DeviceLock.acquire

        def timed(lock: device_lock.DeviceLock) -> None:
            start = time.monotonic()
            acquire(lock)
            self.seconds += time.monotonic() - start

        with mock.patch.object(device_lock.DeviceLock, "acquire", timed):
            yield
