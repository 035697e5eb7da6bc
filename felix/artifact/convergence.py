"""The picture of a run: the best latency so far, over trials and over seconds."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

from felix import errors

#: The file's name in a bundle and in the output folder of several tasks.
FILE_NAME = "convergence.svg"


def draw(
    curve: Sequence[tuple[int, float, float]],
    title: str,
    path: pathlib.Path,
    label: str = "weighted latency (us)",
) -> bool:
    """Write the picture as SVG; False without matplotlib.

    Args:
        curve: points (trial, elapsed_s, best_us).
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
    picture = figure.Figure(figsize=(9, 3.5), layout="constrained")
    panels = picture.subplots(1, 2, sharey=True)
    best_us = [point[2] for point in curve]
    for panel, column, unit in ((panels[0], 0, "trials"), (panels[1], 1, "seconds")):
        xs = [point[column] for point in curve]
        panel.step(xs, best_us, where="post", marker=".", color="tab:blue")
        panel.set_xlabel(unit)
        panel.set_yscale("log")
        # Numbers in plain text: to set formulas takes longer than all else.
        panel.yaxis.set_major_formatter(ticker.LogFormatter())
        panel.yaxis.set_minor_formatter(ticker.LogFormatter())
        panel.grid(True, which="both", alpha=0.3)
    panels[0].set_ylabel(label)
    picture.suptitle(title)
    with errors.writing(path):
        picture.savefig(path, metadata={"Date": None})
    return True
