"""A run worker of a GPU on a fake driver: tasks that it prepares, candidates that it runs."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import pytest
import tvm

from felix import launch_plan, target
from felix.builder import build
from felix.builder import payload as payloads
from felix.runner import description, timing
from felix.runner.cuda import driver as cuda_driver
from felix.runner.cuda import nvrtc
from felix.runner.cuda import runner as cuda_runner
from tests.support.cuda import fakes

N_THREADS = 64


@dataclasses.dataclass
class Bench:
    """A runner, its driver, and the log of both with "quiet" where the parent was asked."""

    driver: fakes.Driver
    folder: pathlib.Path

    def __post_init__(self) -> None:
        self.fresh()

    @classmethod
    def make(
        cls,
        monkeypatch: pytest.MonkeyPatch,
        folder: pathlib.Path,
        kernels: dict[str, fakes.Kernel],
    ) -> Bench:
        """One whose driver has these kernels, of which TVM calls a reference's `main_kernel`."""
        driver = fakes.Driver(kernels)

        def compiled(*args: Any, **named: Any) -> bytes:
            driver.log.append("compile")
            return b"cubin"

        monkeypatch.setattr(cuda_driver, "libcuda", lambda: driver)
        monkeypatch.setattr(nvrtc, "compile_cubin", compiled)
        return cls(driver, folder)

    def fresh(self) -> None:
        """As after the worker's death."""
        self.driver.memory.clear()
        log = self.driver.log
        self.runner = cuda_runner.Runner(str(self.folder), quiet=lambda: log.append("quiet"))

    def prepare(self, func: tvm.tirx.PrimFunc, number: int = 0) -> str:
        """The folder of a task of a function, whose reference has run."""
        folder = self.folder / f"task-{number}"
        folder.mkdir()
        mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
        text = payloads.of(mod, target.parse("h200"))
        made = build.handle_reference(text, str(folder / "made"), seed=0)
        self.runner.prepare(str(folder), made["description"], made["library"])
        return str(folder)

    def run(
        self,
        folder: str,
        kernel: str,
        n_params: int = 3,
        workspaces: tuple[int, ...] = (),
        n_launches: int = 1,
        **more: Any,
    ) -> dict[str, Any]:
        """The reply about a kernel that takes all parameters and workspaces."""
        args = tuple(range(n_params + len(workspaces)))
        launch = launch_plan.Launch(kernel, (1, 1, 1, N_THREADS, 1, 1), 0, args)
        plan = launch_plan.LaunchPlan(n_params, workspaces, (launch,) * n_launches)
        return self.run_plan(folder, plan, **more)

    def run_plan(
        self,
        folder: str,
        plan: launch_plan.LaunchPlan,
        best_us: float | None = None,
        timed: timing.TimingOptions = timing.GPU,
    ) -> dict[str, Any]:
        """The reply about a candidate."""
        path, options = str(self.folder / "candidate.cubin"), dataclasses.asdict(timed)
        description.write_program(path, plan, b"cubin")
        return self.runner.run(folder, path, options, cache_bytes=4096, best_us=best_us)
