"""Engines for `server.tuner.process` without TVM: one that behaves, and ones that do not.

A job's `options["act"]` says what its engine does before it measures; the process of
`make` is ready within a second.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import time
from typing import Any

from felix import errors
from felix.measure import readings
from felix.processes import policy
from server.store import artifacts, networks, progress
from server.tuner import engine, job_access
from tests.support import service_fakes

FACTORY = "tests.support.engine_fakes:Engine"
#: Of an engine whose GPU is the file that this variable names.
FACTORY_ON_GPU = "tests.support.engine_fakes:EngineOnGpu"
GPU_VARIABLE = "CUDA_FAKE_DEVICE"
TAKEN_FACTORY = "tests.support.engine_fakes:TakenEngine"

#: In an engine's folder once a job of `act` "unresponsive export" is unresponsive.
BEGUN = "begun"
#: What a job of `act` "hoard" takes at a time, in bytes.
BLOCK_BYTES = 32 << 20
#: What an engine still holds after a job of `act` "keep": seven blocks.
held_after_jobs: list[bytes] = []


class Engine:
    """Measures `job.trials` candidates, 10 ms each, with a checkpoint every four."""

    def __init__(self, confine_gpu: policy.ConfineGpu = policy.ConfineGpu.AUTO) -> None:
        self.confine_gpu = confine_gpu

    def devices(self) -> list[dict[str, Any]]:
        """See `engine.Engine`."""
        keys = service_fakes.TARGET_KEYS
        return [{"name": "test cpu", "kind": "llvm", "target_keys": keys, "place": "cpu:0"}]

    def conditions(self) -> list[readings.Condition]:
        """See `engine.RemoteEngine`."""
        return [readings.Condition("cpu:0", 1, 4, 2)]

    def versions(self) -> dict[str, str]:
        """See `engine.Engine`."""
        return {"felix": "test"}

    def run(self, claimed: job_access.JobAccess) -> engine.Outcome:
        """See `engine.Engine`."""
        lines, checkpoint = claimed.load()
        assert checkpoint is None or checkpoint.tensors == b"tensors"
        claimed.begin("llvm/test", "resolved")
        claimed.started(["key"], {"model": ",".join(sorted(os.environ))})
        known = {json.loads(line)["decisions"][0] for line in lines}
        for number in (n for n in range(claimed.job.trials or 0) if n not in known):
            if number == 4:
                misbehave(claimed, str(claimed.job.options.get("act", "")))
            if claimed.should_stop() or (number % 4 == 0 and claimed.should_yield()):
                return engine.Outcome(reason="interrupted", failure=None, result=None)
            time.sleep(0.01)
            claimed.add_trial(0, service_fakes.line(number))
            if number % 4 == 3:
                saved = progress.Checkpoint(number + 1, {"n": number + 1}, b"tensors")
                claimed.save(saved, number + 1.0, {})
        return engine.Outcome(reason="trials", failure=None, result=None)

    def export(
        self, claimed: job_access.JobAccess, outcome: engine.Outcome, path: pathlib.Path
    ) -> list[artifacts.Code]:
        """See `engine.Engine`."""
        claimed.begin_step("making the artifact")
        if claimed.job.options.get("act") == "unresponsive export":
            path.with_name(BEGUN).touch()
            be_unresponsive()
        path.write_bytes(f"artifact of job {claimed.job.id}".encode())
        return [artifacts.Code(task=0, schedule="def main(): ...", source="; llvm")]

    def build_network(
        self, claimed: job_access.JobAccess, outcome: engine.Outcome, path: pathlib.Path
    ) -> networks.Built:
        """See `engine.Engine`."""
        claimed.begin_step("building the network")
        path.write_bytes(b"network")
        return service_fakes.built_network()

    def close(self) -> None:
        """See `engine.Engine`."""


class EngineOnGpu(Engine):
    """Its GPU has a fault if it may not write the file, and is none if there is none."""

    def devices(self) -> list[dict[str, Any]]:
        """See `engine.Engine`."""
        device = {"name": "test gpu", "kind": "cuda", "target_keys": service_fakes.TARGET_KEYS}
        try:
            with open(os.environ[GPU_VARIABLE], "r+"):
                return [device | {"fault": None, "unconfined": None}]
        except FileNotFoundError:
            return super().devices()
        except PermissionError as error:
            return [device | {"fault": f"304: {error.strerror}", "unconfined": None}]


class TakenEngine(Engine):
    """One that a client's program has taken over: it runs the code of its job's options.

    The list `outcomes` of that code is in the job's event `started`.
    """

    def run(self, claimed: job_access.JobAccess) -> engine.Outcome:
        """See `engine.Engine`."""
        outcomes: list[str] = []
        claimed.begin("llvm/test", "resolved")
        exec(str(claimed.job.options["code"]), {"outcomes": outcomes})
        claimed.started(["key"], {"outcomes": outcomes})
        return engine.Outcome(reason="trials", failure=None, result=None)


def misbehave(claimed: job_access.JobAccess, act: str) -> None:
    """Do what a hostile or broken job does."""
    match act:
        case "unresponsive":
            claimed.begin_step("building the formulas of task 'gemm'")
            be_unresponsive()
        case "long":  # it listens, but gets nowhere
            claimed.begin_step("building the formulas of task 'gemm'")
            while not claimed.should_stop():
                time.sleep(0.01)
        case "hoard":
            hoard: list[bytes] = []
            while not claimed.should_stop():
                hoard.append(os.urandom(1) * BLOCK_BYTES)
                time.sleep(0.02)
        case "leave a process":
            if os.fork() == 0:  # it holds the pipe, too
                os.setsid()
                time.sleep(60)
                os._exit(0)
            be_unresponsive()
        case "keep":
            held_after_jobs.append(os.urandom(1) * 7 * BLOCK_BYTES)
        case "die":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "workload error":
            raise errors.WorkloadError("it cannot be scheduled")
        case "our error":
            raise ValueError("a defect")
        case "bad verb":
            claimed.do("write")
        case "no message":
            claimed._connection.send_bytes(b"\x80\x04N.")  # type: ignore[attr-defined]
            be_unresponsive()


def be_unresponsive() -> None:
    """As formulas of a chain of reductions are: no call of `should_stop`."""
    while True:
        time.sleep(1.0)
