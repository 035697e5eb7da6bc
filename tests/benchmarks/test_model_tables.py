"""The tables of cost models: the scores of all files side by side."""

from __future__ import annotations

from benchmarks.support import model_tables

SCORES = {"pairwise": 0.9, "top1": 0.92, "top5": None, "spearman": 0.9, "rmse": 0.33, "slope": 1.0}
EVALUATED = {
    "command": "python -m costmodel evaluate --data data/cuda",
    "reports": [
        {"label": "data/pretrained/cuda/held_out.safetensors", "overall": SCORES},
        {"label": "xgboost", "overall": SCORES | {"top1": 0.91}},
    ],
    "corrected": [{"label": "corrected by 8", "overall": SCORES}],
}


def test_predictors_of_all_files_are_in_one_table() -> None:
    ablated = {
        "command": "python -m costmodel ablate --kind template",
        "rows": [{"variant": {"name": "no x"}, "mean": SCORES}],
    }
    text = model_tables.render(EVALUATED, ablated)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()[2:]]
    assert [row[:2] for row in rows] == [
        ["GPU", "network"],
        ["GPU", "xgboost"],
        ["GPU", "corrected by 8"],
        ["generated kernels", "no x"],
    ]
    assert rows[0][2:] == ["0.900", "0.920", "-", "0.900", "0.330", "-"]
    assert rows[1][3] == "0.910"


def test_a_row_says_whose_schedules_are_scored() -> None:
    command = "python -m costmodel compare --data data/llvm"
    assert model_tables._what({"command": command}) == "CPU"
    assert model_tables._what({"command": command, "split": "operator"}).endswith("held out")
    drawn = EVALUATED | {"command": f"{EVALUATED['command']} --sources random"}
    assert model_tables._what(drawn) == "GPU, drawn at random"
