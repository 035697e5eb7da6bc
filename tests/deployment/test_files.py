"""Files of a deployment: compose's by its schema and what it names, alerts, the dashboard."""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Iterator
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client import parser

from felix.cli import main
from server import app, commands, settings, states
from tests.support import deployment

ROOT, DOCKERFILE = deployment.ROOT, deployment.DOCKERFILE
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
COMPOSE, SERVICES = deployment.COMPOSE, deployment.SERVICES
OURS = {name: one for name, one in SERVICES.items() if "build" in one}
WITH_DATABASE = ("migrate", "api", "tuner", "cluster-tuner")
GUIDE = (ROOT / "docs" / "guide" / "deployment.md").read_text()

#: What each condition requires of the service that is waited for.
CONDITIONS = {
    "service_healthy": lambda one: "healthcheck" in one,
    "service_completed_successfully": lambda one: one["command"] == ["felix", "db", "upgrade"],
    "service_started": lambda one: True,
}


def problems(path: pathlib.Path) -> str:
    """What compose's schema says against a file; empty: nothing."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*command, str(path)], capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_the_file_follows_compose_s_schema(tmp_path: pathlib.Path) -> None:
    assert problems(ROOT / "docker-compose.yml") == ""
    wrong: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    wrong["services"]["api"]["comand"] = wrong["services"]["api"].pop("command")
    (tmp_path / "docker-compose.yml").write_text(yaml.safe_dump(wrong))
    assert "comand" in problems(tmp_path / "docker-compose.yml")


def test_profiles() -> None:
    profiles: dict[str, set[str]] = {}
    for name, one in SERVICES.items():
        for profile in one.get("profiles", ["default"]):
            profiles.setdefault(profile, set()).add(name)
    assert profiles == {
        "default": {"postgres", "migrate", "api", "tuner"},
        "cluster": {"ray-head", "builder", "gpu-runner", "cluster-tuner"},
        "boards": {"tracker"},
    }


@pytest.mark.parametrize("name", OURS)
def test_services_wait_for_services_that_can_be_waited_for(name: str) -> None:
    waits_for = OURS[name].get("depends_on", {})
    if isinstance(waits_for, list):
        waits_for = {other: {"condition": "service_started"} for other in waits_for}
    profiles = {"default", *OURS[name].get("profiles", [])}
    for other, how in waits_for.items():
        assert CONDITIONS[how["condition"]](SERVICES[other])
        assert set(SERVICES[other].get("profiles", ["default"])) <= profiles


@pytest.mark.parametrize("name", OURS)
def test_the_guide_has_the_command(name: str) -> None:
    words = OURS[name]["command"]
    stated = " ".join(words if words[0] != "sh" else words[2:])
    stated = f"`{stated.replace(' && exec ', '`, then `')}`"
    profile = "".join(f"`{each}` " for each in OURS[name].get("profiles", []))
    assert f"| `{name}` | {profile}| {stated} |" in GUIDE
    if name in ("migrate", "api", "tuner"):
        assert stated.strip("`") in deployment.block("deployment.md", "By hand", 1).splitlines()


@pytest.mark.parametrize("name", OURS)
def test_commands_of_felix_parse(name: str) -> None:
    text = " ".join(OURS[name]["command"])
    commands = re.findall(r"(?:^|exec )felix (.+)", text)
    assert len(commands) == text.count("felix ")
    for arguments in commands:
        main._parser().parse_args(arguments.split())


@pytest.mark.parametrize("name", WITH_DATABASE)
def test_settings_exist_and_lead_to_the_database(name: str) -> None:
    password = SERVICES["postgres"]["environment"]["POSTGRES_PASSWORD"]
    assert password.startswith("${FELIX_DB_PASSWORD:?")  # compose refuses to start without one
    filled = {
        key: deployment.without_absent(value.replace("${FELIX_DB_PASSWORD}", "pw"))
        for key, value in OURS[name]["environment"].items()
        if not key.startswith("RAY_")
    }
    known = {f"FELIX_{field.upper()}" for field in settings.Settings.model_fields}
    assert set(filled) <= known
    chosen = settings.Settings.from_environment(filled)
    postgres = SERVICES["postgres"]["environment"]
    assert chosen.database == (
        f"postgresql+psycopg://{postgres['POSTGRES_USER']}:pw@postgres/{postgres['POSTGRES_DB']}"
    )
    assert chosen.log_json  # keys are printed for people only
    assert f"data:{chosen.data_dir}" in OURS[name]["volumes"]
    assert f"mkdir {chosen.data_dir} && chown felix {chosen.data_dir}" in DOCKERFILE


def test_ports_are_this_machine_s() -> None:
    (port,) = OURS["api"]["ports"]
    assert port == f"127.0.0.1:8000:{settings.Settings().port}"
    assert OURS["api"]["environment"]["FELIX_HOST"] == "0.0.0.0"
    (port,) = OURS["tracker"]["ports"]
    assert port == "${TRACKER_ADDRESS:-127.0.0.1}:9190:9190"
    assert not [name for name in set(SERVICES) - {"api", "tracker"} if "ports" in SERVICES[name]]


def test_volumes_and_secrets() -> None:
    named = {
        volume.partition(":")[0] for one in SERVICES.values() for volume in one.get("volumes", [])
    }
    assert named == set(COMPOSE["volumes"])
    for one in SERVICES.values():
        for key, value in one.get("environment", {}).items():
            if re.search("PASSWORD|TOKEN|SECRET", key):
                assert value.startswith("${")
    ignored = (ROOT / ".gitignore").read_text().split()
    assert ".env" in ignored and ".env" in (ROOT / ".dockerignore").read_text().split()


def test_a_gpu_is_reserved_for_what_measures_on_it() -> None:
    with_gpu = [name for name, one in SERVICES.items() if "deploy" in one]
    assert with_gpu == ["gpu-runner"]
    (device,) = OURS["gpu-runner"]["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
    assert "cuda" in extras("gpu-runner")


def extras(name: str) -> list[str]:
    """Extras that the image of a service has."""
    (default,) = set(re.findall(r'^ARG EXTRAS="(.+)"$', DOCKERFILE, re.M))
    return OURS[name]["build"].get("args", {}).get("EXTRAS", default).split()


@pytest.mark.parametrize("name", OURS)
def test_images_have_what_their_commands_need(name: str) -> None:
    stages = re.findall(r"^FROM \S+ AS (\w+)$", DOCKERFILE, re.M)
    assert stages == ["slim", "tuner"] and OURS[name]["build"]["target"] in stages
    is_tuner = "felix tuner" in " ".join(OURS[name]["command"])
    assert (OURS[name]["build"]["target"] == "tuner") == is_tuner
    needed = {
        "worker": "cluster",
        "ray": "cluster",
        "serve": "server",
        "tuner": "server",
        "db": "server",
        "tvm.exec.rpc_tracker": "tracker",
    }
    words = " ".join(OURS[name]["command"]).split()
    assert {needed[word] for word in words if word in needed} <= set(extras(name)) <= set(EXTRAS)
    same_image = [one["build"] for one in OURS.values() if one["image"] == OURS[name]["image"]]
    assert all(build == OURS[name]["build"] for build in same_image)


def test_the_image_has_what_the_package_needs() -> None:
    copied = {
        source
        for line in re.findall(r"^COPY (.+)$", DOCKERFILE, re.MULTILINE)
        for source in line.split()[:-1]
    }
    packages = {
        name.rstrip("*") for name in PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]
    }
    files = "pyproject.toml README.md LICENSE requirements.lock deployment/requirements.py".split()
    assert copied == packages | {*files}
    ignored = (ROOT / ".dockerignore").read_text().split()
    for source in copied:
        assert (ROOT / source).exists() and source.split("/")[0] not in ignored
    assert PROJECT["project"]["readme"] in copied
    _, *stages = re.split(r"^FROM ", DOCKERFILE, flags=re.M)
    assert [re.findall(r"^USER (\w+)$", stage, re.M)[-1] for stage in stages] == ["felix"] * 2


def test_what_images_install() -> None:
    command = [sys.executable, "deployment/requirements.py", "server", "s3"]
    every = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    expected = [*PROJECT["project"]["dependencies"], *EXTRAS["server"], *EXTRAS["s3"]]
    assert every.stdout.splitlines() == expected
    slim = subprocess.run(
        [*command, "--without", *deployment.LEFT_OUT],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    left_out = set(expected) - set(slim.stdout.splitlines())
    assert {re.split("[=>]", each)[0] for each in left_out} == set(deployment.LEFT_OUT)
    unknown = subprocess.run([*command, "--without", "tensorflow"], cwd=ROOT, capture_output=True)
    assert unknown.returncode != 0 and b"tensorflow" in unknown.stderr


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # about the HTTP library that the client prefers
    from fastapi import testclient

FOLDER = ROOT / "deployment"
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
    stated = {
        name: set(re.findall(r"\w+", labels))
        for name, labels in re.findall(r"^\| `(felix_\w+)` \| ([^|]*)\|", GUIDE, re.M)
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
    ignored = (ROOT / ".gitignore").read_text().split()
    assert key_file.relative_to(ROOT).as_posix() in ignored
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
