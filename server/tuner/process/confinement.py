"""How an engine starts beside an NVIDIA GPU: confined, if the GPU's driver works so.

The first engine is the trial. It and its pools are made as later ones are, and each pool measures
a small program before there is a client's.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from felix.processes import policy, trial
from server import errors

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Start:
    """Whether an engine is confined, and what is asked of the run workers of its pools."""

    is_confined: bool
    run_workers: policy.ConfineGpu
    #: Why it is not confined; None if it is.
    reason: str | None = None


def packed(folder: pathlib.Path, start: Start) -> bytes:
    """What `unpacked` reads in the process that forks engines."""
    return json.dumps([str(folder), start.is_confined, start.run_workers]).encode()


def unpacked(packet: bytes) -> tuple[pathlib.Path, Start]:
    """The folder of an engine and how it starts."""
    folder, is_confined, run_workers = json.loads(packet)
    return pathlib.Path(folder), Start(is_confined, policy.ConfineGpu(run_workers))


def choose(chosen: policy.ConfineGpu, attempt: Callable[[Start], str | None]) -> Start:
    """How engines start on this machine, which has an NVIDIA GPU.

    Args:
        chosen: the setting.
        attempt: makes an engine that starts so; returns why it or its GPU does not work, or None.

    Raises:
        SettingsError: engines have to be confined, and the GPU does not work in one that is.
    """
    if chosen is policy.ConfineGpu.OFF:
        return _unconfined(chosen, "FELIX_CONFINE_GPU is off")
    confined = Start(True, chosen)
    anyhow = Start(False, policy.ConfineGpu.AUTO)
    outcome = trial.decide(lambda is_confined: attempt(confined if is_confined else anyhow))
    reason = outcome.reason or ""
    if outcome.verdict is trial.Verdict.BROKEN:
        _log.error(
            "the GPU cannot be used, confined or not: %s",
            reason,
            extra={"action": "device_broken"},
        )
    if outcome.verdict is not trial.Verdict.IN_THE_WAY:
        return confined
    if chosen is policy.ConfineGpu.ON:
        raise errors.SettingsError(
            "confinement is required (FELIX_CONFINE_GPU=on or FELIX_REQUIRE_CONFINEMENT), and the "
            f"GPU does not work in a confined engine: {reason}. Run the service as a user other "
            "than root, or allow unconfined engines: FELIX_CONFINE_GPU=auto"
        )
    return _unconfined(
        policy.ConfineGpu.AUTO, f"the GPU does not work in a confined one: {reason}"
    )


def fault(devices: Sequence[Mapping[str, Any]]) -> str | None:
    """Why nothing can be measured on the GPU that an engine should have; None if it can."""
    gpus = [device for device in devices if device["kind"] == "cuda"]
    if not gpus:
        return "its driver finds no GPU"
    return next((str(gpu["fault"]) for gpu in gpus if gpu.get("fault")), None)


def described(devices: Sequence[Mapping[str, Any]], start: Start) -> list[dict[str, Any]]:
    """The devices of an engine, each with the reason if clients' programs run unconfined there."""
    if start.is_confined:
        return [dict(device) for device in devices]
    return [{**device, "unconfined": start.reason} for device in devices]


def _unconfined(run_workers: policy.ConfineGpu, reason: str) -> Start:
    _log.warning(
        "engines are not confined beside the NVIDIA GPU: %s",
        reason,
        extra={"action": "confinement_missing"},
    )
    return Start(False, run_workers, reason)
