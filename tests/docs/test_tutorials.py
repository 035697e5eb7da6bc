"""Tutorials and the examples of the guide run as they stand, in an empty folder."""

from __future__ import annotations

import os
import pathlib
import re
import sys
from typing import Any

import pytest

from tests.support import warm

ROOT = pathlib.Path(__file__).parents[2]
TUTORIALS = sorted((ROOT / "docs" / "guide" / "tutorials").glob("*.py"))
#: What `make test` leaves out: it serves, or tunes as others do.
_SLOW = ("service_user", "Use the parts alone", "Watch a run")
#: Runs in a tutorial too, where MetaSchedule's workers take their time once.
_IN_A_TUTORIAL = "ms.tune_tir"


def _case(value: Any, name: str) -> Any:
    marks = pytest.mark.slow("serves, or tunes as others do") if name in _SLOW else ()
    return pytest.param(value, id=name, marks=marks)


def _examples(page: str) -> list[Any]:
    text = (ROOT / "docs" / "guide" / page).read_text()
    blocks = re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", text, re.S | re.M)
    return [
        _case(code, title)
        for title, section in blocks
        for code in re.findall(r"^```python\n(.*?)^```", section, re.S | re.M)
        if _IN_A_TUTORIAL not in code
    ]


def test_there_is_a_tutorial_for_each_audience() -> None:
    names = {path.stem for path in TUTORIALS}
    assert names == {"tvm_user", "pytorch_user", "service_user", "contributor"}


@pytest.mark.parametrize("path", [_case(path, path.stem) for path in TUTORIALS])
def test_tutorial_runs(path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = warm.run([sys.executable, str(path)], cwd=tmp_path, env=environment, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) > 5


@pytest.mark.parametrize("code", _examples("howto.md"))
def test_example_of_the_guide_runs(
    code: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "example", "exec"), {"__name__": "example"})


def test_the_example_of_the_parts_gives_what_it_says(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = (
        example.values[0]
        for example in _examples("howto.md")
        if "temperature" in example.values[0]
    )
    names: dict[str, Any] = {}
    exec(compile(code, "howto.md", "exec"), names)
    formulas = names["formulas"]
    assert names["values"].shape == (256, len(formulas.rows), len(formulas.names))
    assert names["smooth"].shape == names["values"].shape and names["smooth"].requires_grad
    assert (names["trips"] > 0).any()
    assert names["schedule"].mod is not None
