"""Templates say what they said: sessions, records and the shipped model of before are of use.

`unchanged.json` has it for each template of some tasks: key, parameters, and for some decisions
the program, features, limits and the prediction. Where it has to change, so has the version of
the template (or of `felix.templates.spec`, with a new checkpoint), but for a program alone that
takes as long as before; the file is what `_said` gives.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
import random
from typing import Any

import numpy as np
import pytest
import torch

from felix import errors, target, workloads
from felix.features.kind import FeatureKind
from felix.search import cost_model
from felix.space.template_sketch import TemplateSketch
from felix.templates import registry
from felix.templates.template import Template

BEFORE: dict[str, dict[str, dict[str, Any]]] = json.loads(
    (pathlib.Path(__file__).parent / "unchanged.json").read_text()
)


@pytest.fixture(autouse=True)
def _cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FELIX_CACHE_DIR", str(tmp_path))


@pytest.mark.parametrize("case", BEFORE)
def test_templates_say_what_they_said(case: str) -> None:
    said = _said(case)
    assert list(said) == list(BEFORE[case])
    for name, now in said.items():
        before = BEFORE[case][name]
        for field in ("key", "parameters", "decisions", "program"):
            assert now[field] == before[field], f"{name}: {field}"
        for field in ("features", "limits"):
            np.testing.assert_allclose(now[field], before[field], rtol=1e-9, err_msg=field)
        np.testing.assert_allclose(now["ln_us"], before["ln_us"], rtol=1e-4)


def _said(case: str) -> dict[str, dict[str, Any]]:
    """What the templates of "task @ architecture" say, by name; numbers are sums over the rows."""
    text, arch = case.split(" @ ")
    task = workloads.parse(text, target.parse(f"cuda -arch {arch}"))
    machine = target.hardware(task.target)
    model = cost_model.load(None, target.parse("cuda -arch sm_90"), 0, FeatureKind.TEMPLATE).module
    said = {}
    for template in registry.templates_of(task.mod, task.target, machine).templates:
        sketch = TemplateSketch(task, 0, template, machine)
        decisions = _legal_decisions(template)
        row = np.asarray([list(decisions.values())])
        made = template.generate(decisions)
        features = torch.as_tensor(sketch.formulas.exact(row), dtype=torch.float32)
        with torch.no_grad():
            ln_us = model(features, (features != 0).any(-1).float())
        said[template.name] = {
            "key": sketch.key,
            "parameters": _hash([(p.name, p.domain, p.log_scale) for p in template.parameters]),
            "decisions": decisions,
            "program": _hash((made.source, made.arch, made.plan.to_json())),
            "features": sketch.formulas.raw(row)[0].sum(axis=1).tolist(),
            "limits": float(sketch.formulas.constraints_exact(row).sum()),
            "ln_us": float(ln_us[0]),
        }
    return said


def _legal_decisions(template: Template) -> dict[str, int]:
    rng = random.Random(0)
    while True:
        decisions = {p.name: rng.choice(p.domain) for p in template.parameters}
        try:
            template.generate(decisions)
        except errors.DecisionError:
            continue
        return decisions


def _hash(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:20]
