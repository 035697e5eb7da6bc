"""Alerts and the dashboard use what `/metrics` of a running service exports."""

from __future__ import annotations

import json
import pathlib
import re
import warnings
from collections.abc import Iterator
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client import parser

from server import app, commands, settings, states
from tests.support import deployment

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # about the HTTP library that the client prefers
    from fastapi import testclient

FOLDER = deployment.ROOT / "deployment"
PROMETHEUS = FOLDER / "prometheus"
ALERTS: dict[str, Any] = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())
RULES: list[dict[str, Any]] = [rule for group in ALERTS["groups"] for rule in group["rules"]]
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "grafana" / "felix.json").read_text())
TARGETS = [target for panel in DASHBOARD["panels"] for target in panel["targets"]]
DURATION = re.compile(r"[1-9]\d*[smhd]")

Exported = dict[str, set[str]]


@pytest.fixture
def exported(tmp_path: pathlib.Path) -> Exported:
    """Each exported series with its labels, after a request."""
    chosen = settings.Settings(data_dir=tmp_path)
    commands.upgrade(chosen)
    _, key = commands.create_key(chosen, "prometheus", ["read", "admin"], {})
    made = app.create_app(chosen)
    client = testclient.TestClient(made, headers={"Authorization": f"Bearer {key}"})
    assert client.get("/v1/jobs").status_code == 200
    text = client.get("/metrics").text
    made.state.services.unrestricted_db.close()
    series: Exported = {}
    for family in parser.text_string_to_metric_families(text):
        for sample in family.samples:
            series.setdefault(sample.name, set()).update(sample.labels)
    return series


def selectors(expression: str) -> Iterator[promql_parser.VectorSelector]:
    """The series that a query reads; it has to parse."""
    yield from _below(promql_parser.parse(expression))


def _below(node: Any) -> Iterator[promql_parser.VectorSelector]:
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    for name in ("expr", "lhs", "rhs", "param", "vector_selector"):
        yield from _below(getattr(node, name, None)) if hasattr(node, name) else ()
    for argument in getattr(node, "args", ()):
        yield from _below(argument)


def wrong(expression: str, exported: Exported) -> list[str]:
    """What a query reads that no server exports."""
    found = []
    n_series = 0
    for selector in selectors(expression):
        n_series += 1
        labels = exported.get(selector.name)
        if labels is None:
            found.append(selector.name)
            continue
        for matcher in selector.matchers.matchers:
            if matcher.name not in labels:
                found.append(f"{selector.name}{{{matcher.name}}}")
    assert n_series == len(re.findall(r"\bfelix_\w+", expression))
    grouped = re.findall(r"\bby \(([^)]*)\)", expression)
    known = set().union(*exported.values())
    return found + [
        name for each in grouped for name in each.split(", ") if name and name not in known
    ]


def test_queries_read_what_is_exported(exported: Exported) -> None:
    for expression in [*(rule["expr"] for rule in RULES), *(t["expr"] for t in TARGETS)]:
        assert wrong(expression, exported) == [], expression
    assert wrong("max(felix_job)", exported) == ["felix_job"]
    assert wrong("sum by (color) (felix_jobs{site='x'})", exported) == [
        "felix_jobs{site}",
        "color",
    ]


def test_states_in_queries_exist() -> None:
    expressions = " ".join(each["expr"] for each in [*RULES, *TARGETS])
    named = re.findall(r'state[=!~]+"([^"]+)"', expressions)
    assert named
    assert {state for each in named for state in each.split("|")} <= {str(s) for s in states.State}


def test_the_guide_names_every_metric(exported: Exported) -> None:
    guide = (deployment.ROOT / "docs" / "guide" / "deployment.md").read_text()
    stated = {
        name: set(re.findall(r"\w+", labels))
        for name, labels in re.findall(r"^\| `(felix_\w+)` \| ([^|]*)\|", guide, re.M)
    }
    suffix = re.compile(r"_(bucket|count|sum|created)$")
    families = {suffix.sub("", name): labels - {"le"} for name, labels in exported.items()}
    counters = {name for name in families if f"{name}_total" in exported}
    assert stated == {name: families[name] for name in set(families) - counters}


def test_rules_have_prometheus_form() -> None:
    assert set(ALERTS) == {"groups"}
    for group in ALERTS["groups"]:
        assert set(group) == {"name", "rules"}
    names = [rule["alert"] for rule in RULES]
    assert len(set(names)) == len(names) > 0
    for rule in RULES:
        assert set(rule) - {"for"} == {"alert", "expr", "labels", "annotations"}
        assert re.fullmatch(r"Felix[A-Za-z]+", rule["alert"])
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert set(rule["annotations"]) == {"summary", "description"}
        assert DURATION.fullmatch(rule.get("for", "1m"))


def test_prometheus_loads_the_rules_and_sends_a_key() -> None:
    chosen = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    assert [(PROMETHEUS / name).exists() for name in chosen["rule_files"]] == [True]
    (scraped,) = chosen["scrape_configs"]
    assert "credentials" not in scraped["authorization"]
    key_file = PROMETHEUS / scraped["authorization"]["credentials_file"]
    ignored = (deployment.ROOT / ".gitignore").read_text().split()
    assert key_file.relative_to(deployment.ROOT).as_posix() in ignored
    assert scraped.get("metrics_path", "/metrics") == "/metrics"


def test_the_dashboard_has_grafana_s_form() -> None:
    (variable,) = DASHBOARD["templating"]["list"]
    assert (variable["type"], variable["query"]) == ("datasource", "prometheus")
    source = {"type": "prometheus", "uid": f"${{{variable['name']}}}"}
    panels = DASHBOARD["panels"]
    assert [panel["id"] for panel in panels] == list(range(1, len(panels) + 1))
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        assert panel["type"] in ("stat", "timeseries") and panel["title"]
        assert panel["datasource"] == source and panel["targets"]
        assert all(target["datasource"] == source for target in panel["targets"])
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken and max(x for x, _ in cells) < 24
        taken |= cells
