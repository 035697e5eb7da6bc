"""The networks with many independent operators, and the table of what branches gain."""

from __future__ import annotations

import torch

from benchmarks.networks import branches, results


def test_networks_have_the_results_of_their_papers() -> None:
    with torch.no_grad():
        images = branches.googlenet().eval()(torch.randn(1, 3, 64, 64))
        clicks = branches.DLRM(rows=10)(torch.randn(2, 13), torch.randint(0, 10, (2, 26)))
    assert images.shape == (1, 1000)
    assert clicks.shape == (2, 1)
    assert bool(((clicks > 0) & (clicks < 1)).all())


def test_a_row_has_medians_and_the_extreme_ratios() -> None:
    captured = [
        {"branches": 4, "in_order_us": us, "branched_us": 10.0} for us in (30.0, 20.0, 25.0)
    ]
    run = {"name": "dlrm", "small": False, "dtype": "float32", "calls": 89}
    (line, chain) = results.render_branches(
        {"runs": [run | {"captured": captured}, run | {"name": "bert", "captured": []}]}
    ).splitlines()[-2:]
    assert [cell.strip() for cell in line.split("|")[1:-1]] == [
        "dlrm-float32",
        "89",
        "4",
        "25",
        "10",
        "2.5",
        "2",
        "3",
    ]
    assert [cell.strip() for cell in chain.split("|")[1:-1]] == [
        "bert-float32",
        "89",
        "1",
        *"-----",
    ]
