"""The picture of a run: the best latency so far, over trials and over seconds; of a network, over
the seconds since the call."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from felix import errors

#: Points (x, latency in us) by the unit of x.
Panels: TypeAlias = Mapping[str, Sequence[tuple[float, float]]]

#: The file's name in a bundle and in the output folder of several tasks.
FILE_NAME = "convergence.svg"


def of_trials(curve: Sequence[tuple[int, float, float]]) -> Panels:
    """The panels of points (trial, elapsed_s, best_us)."""
    return {
        "trials": [(trial, best_us) for trial, _, best_us in curve],
        "seconds": [(elapsed_s, best_us) for _, elapsed_s, best_us in curve],
    }


def draw(
    panels: Panels, title: str, path: pathlib.Path, label: str = "weighted latency (us)"
) -> bool:
    """Write the picture as SVG; False without matplotlib.

    Args:
        panels: points (x, best latency in us) by the unit of x.
        title: above the picture.
        path: the file.
        label: of the axis of latencies.

    Raises:
        OutputError: the file cannot be written.
    """
    try:
        from matplotlib import figure, ticker
    except ImportError:
        return False
    picture = figure.Figure(figsize=(4.5 * len(panels), 3.5), layout="constrained")
    (axes,) = picture.subplots(1, len(panels), sharey=True, squeeze=False)
    for panel, (unit, points) in zip(axes, panels.items(), strict=True):
        xs, best_us = [point[0] for point in points], [point[1] for point in points]
        panel.step(xs, best_us, where="post", marker=".", color="tab:blue")
        panel.set_xlabel(unit)
        panel.set_yscale("log")
        # Numbers in plain text: to set formulas takes longer than all else.
        panel.yaxis.set_major_formatter(ticker.LogFormatter())
        panel.yaxis.set_minor_formatter(ticker.LogFormatter())
        panel.grid(True, which="both", alpha=0.3)
    axes[0].set_ylabel(label)
    picture.suptitle(title)
    with errors.writing(path):
        picture.savefig(path, metadata={"Date": None})
    return True
