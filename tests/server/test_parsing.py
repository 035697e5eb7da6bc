"""Workloads of clients: read in confined children, refused with a message, never a crash here."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import random
import subprocess
import sys
from typing import Any

import pytest
import torch

from benchmarks.networks import onnx_files
from felix import frontend, target, workloads
from felix.network import group_costs
from felix.network import groups as network_groups
from felix.processes import confine, fork_server
from felix.task import Task
from server import commands, errors, settings
from server.parsing import child
from server.parsing import parser as parsing
from tests.support import networks, share
from tests.support.hostile import besieged, onnx_models

GEMM = parsing.Workload(kind="operator", name="gemm", params={"m": 8, "n": 16, "k": 32})
TF32 = dataclasses.replace(GEMM, params={**GEMM.params, "allow_tf32": True})


@pytest.fixture(scope="module")
def parser() -> parsing.Parser:
    return parsing.Parser(seconds=30)


def tir(content: bytes) -> parsing.Workload:
    return parsing.Workload(kind="tir", name="program.json", content=content)


def onnx_file(content: bytes) -> parsing.Workload:
    return parsing.Workload(kind="onnx", name="net.onnx", content=content)


def network() -> bytes:
    return onnx_models.products("wv", {"w": (32, 64), "v": (64, 16)})


def test_operators_and_their_schemas(parser: parsing.Parser) -> None:
    schemas = parser.operators()
    assert schemas == {name: op.schema for name, op in workloads.OPERATORS.items()}
    assert json.loads(json.dumps(schemas)) == schemas


def test_an_operator(parser: parsing.Parser) -> None:
    parsed = parser.parse(GEMM, "llvm")
    (task,) = parsed.tasks
    assert (task.flops, task.weight, parsed.target_key) == (2 * 8 * 16 * 32, 1.0, "llvm")
    assert json.loads(task.program)["name"] == task.name


def test_tf32_is_a_part_of_a_submitted_program(parser: parsing.Parser) -> None:
    (exact,) = parser.parse(GEMM, "llvm").tasks
    (allowed,) = parser.parse(TF32, "llvm").tasks
    assert json.loads(allowed.program)["allow_tf32"] and "allow_tf32" not in exact.program
    assert allowed.program_key != exact.program_key


@pytest.mark.parametrize(
    "dtype, more, output",
    [
        ("bfloat16", {}, "bfloat16"),
        ("bfloat16", {"out_dtype": "float32"}, "float32"),
        ("float16", {}, "float16"),
        ("float16", {"out_dtype": "bfloat16"}, "bfloat16"),
        ("int8", {}, "int32"),
        ("int8", {"epilogue": ["scale", "bias"], "out_dtype": "float16"}, "float16"),
        ("float8_e4m3fn", {}, "bfloat16"),
        ("float8_e5m2", {"epilogue": ["scalar_scale"], "out_dtype": "float32"}, "float32"),
    ],
)
def test_every_element_type_comes_in(
    parser: parsing.Parser, dtype: str, more: dict[str, Any], output: str
) -> None:
    params = {**GEMM.params, "dtype": dtype, **more}
    for name, extents in (("gemm", {}), ("conv2d", {"n": 1, "h": 6, "w": 6, "ci": 8, "co": 8})):
        chosen = params if not extents else {**extents, "dtype": dtype, **more}
        workload = parsing.Workload(kind="operator", name=name, params=chosen)
        (task,) = parser.parse(workload, "h100").tasks
        made = Task.from_json(task.program, trusted=True)
        dtypes = [str(param.ty.dtype) for param in made.func.params]
        assert (dtypes[0], dtypes[-1]) == (dtype, output)


@pytest.mark.parametrize(
    "params, message",
    [
        ({"dtype": "float8_e4m3fn"}, "Give a GPU as the target"),
        ({"dtype": "int8", "out_dtype": "float32"}, "with a scale"),
        ({"dtype": "int8", "epilogue": ["gelu"]}, "put a scale before it"),
        ({"dtype": "float8"}, "float8_e4m3fn"),
        ({"dtype": "float16", "allow_tf32": True}, "leave it out"),
        ({"epilogue": ["scales"]}, "did you mean 'scale'"),
    ],
)
def test_refused_types_say_what_to_do(
    parser: parsing.Parser, params: dict[str, Any], message: str
) -> None:
    workload = dataclasses.replace(GEMM, params={**GEMM.params, **params})
    with pytest.raises(errors.InvalidRequest, match=message):
        parser.parse(workload, "llvm")


def test_tf32_may_be_allowed_to_any_workload(parser: parsing.Parser) -> None:
    task = workloads.gemm(8, 16, 32, target="h100")
    shapes = {"x": [4, 32]}
    for workload in (
        GEMM,
        tir(task.to_json().encode()),
        parsing.Workload(kind="onnx", name="n", content=network(), shapes=shapes),
    ):
        exact = parser.parse(workload, "h100")
        allowed = parser.parse(dataclasses.replace(workload, allow_tf32=True), "h100")
        changed = [json.loads(each.program).get("allow_tf32", False) for each in allowed.tasks]
        assert any(changed)
        assert not any("allow_tf32" in each.program for each in exact.tasks)
        keys = zip(exact.tasks, allowed.tasks, strict=True)
        assert [a.program_key != b.program_key for a, b in keys] == changed
        assert {group.task for group in allowed.groups} == {group.task for group in exact.groups}
        on_cpu = parser.parse(dataclasses.replace(workload, allow_tf32=True), "llvm")
        assert not any("allow_tf32" in each.program for each in on_cpu.tasks)


def test_tir_in_every_form(parser: parsing.Parser) -> None:
    import tvm

    task = workloads.gemm(8, 16, 32, target="llvm")
    texts = [task.to_json(), tvm.ir.save_json(task.mod), tvm.ir.save_json(task.func)]
    all_parsed = [parser.parse(tir(text.encode()), "llvm") for text in texts]
    assert {parsed.tasks[0].flops for parsed in all_parsed} == {float(task.flops)}


@pytest.mark.slow("plans a network for a GPU")
def test_a_gpu_s_groups_are_planned(parser: parsing.Parser) -> None:
    """As `felix.optimize` plans them, but without looking at schedules."""
    content = onnx_files.export(networks.Block().eval(), [torch.tensor([[1, 2, 3, 10, 0]])])
    workload = parsing.Workload(kind="onnx", name="net.onnx", content=content)
    model = frontend.import_onnx(content, None)
    calls = {}
    for spec in ("llvm", "h200"):
        full = target.parse(spec)
        found = parser.parse(workload, spec).groups
        lowered = frontend.lowered(model, full, group_costs.grouping(None, full, None))
        expected = network_groups.of(lowered, full)
        assert [each.calls for each in found] == [each.calls for each in expected]
        calls[spec] = sum(each.calls for each in found)
    assert calls["h200"] < calls["llvm"]


def test_an_onnx_model(parser: parsing.Parser) -> None:
    content = network()
    shaped = parsing.Workload(kind="onnx", name="n", content=content, shapes={"x": [4, 32]})
    parsed = parser.parse(shaped, "llvm")
    assert sum(task.flops for task in parsed.tasks) >= 2 * 4 * (32 * 64 + 64 * 16)
    assert len(parsed.tasks) == 2
    for cut in (1, 10, len(content) // 2, len(content) - 1):
        with pytest.raises(errors.InvalidRequest):
            parser.parse(onnx_file(content[:cut]), "llvm")


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        (parsing.Workload(kind="operator", name="gem"), "did you mean gemm"),
        (parsing.Workload(kind="operator", name="gemm", params={"m": 1}), "missing"),
        (parsing.Workload(kind="operator", name="gemm", params={"m": "x", "n": 1, "k": 1}), "m"),
        (tir(b""), "not valid JSON"),
        (tir(b"\xff\xfe"), "UTF-8"),
        (tir(b"[" * 100_000), "."),
        (tir(b"[]"), "."),
        (tir(b"null"), "."),
        (tir(b'{"func": {}, "target": 1}'), "."),
        (tir(b'{"root_index":2,"nodes":[{"type":"None"},{"type":"tirx.PrimFunc"}]}'), "."),
        (tir(b'{"root_index": 5, "nodes": []}'), "TVM cannot read"),
        (tir(b'{"root_index": 0, "nodes": [{"type": "tirx.PrimFunc", "data": {}}]}'), "."),
        (
            tir(
                json.dumps(
                    {"felix_task": 1, "name": "x", "weight": 1e400, "target": {}, "mod": "{}"}
                ).encode()
            ),
            ".",
        ),
        (onnx_file(b""), "the ONNX file is empty"),
        (onnx_file(b"\x08\x01garbage" * 50), "not an ONNX model"),
        (onnx_file(b"PK\x03\x04" + b"\0" * 500), "."),
    ],
)
def test_malformed_workloads_are_refused(
    parser: parsing.Parser, workload: parsing.Workload, message: str
) -> None:
    with pytest.raises(errors.InvalidRequest, match=message):
        parser.parse(workload, "llvm")


@pytest.mark.parametrize("target", ["", "nope", "llvm -mcpu", "opencl", '{"kind": 5}', "\0"])
def test_malformed_targets_are_refused(parser: parsing.Parser, target: str) -> None:
    with pytest.raises(errors.InvalidRequest):
        parser.parse(GEMM, target)


def test_a_child_without_memory_is_an_invalid_request() -> None:
    with pytest.raises(errors.InvalidRequest, match="memory"):
        parsing.Parser(memory_bytes=32 << 20).parse(onnx_file(network()), "llvm")


def test_random_changes_of_a_program_never_break_the_service(parser: parsing.Parser) -> None:
    rng = random.Random(0)
    text = workloads.gemm(4, 5, 6, target="llvm").to_json()
    outer = json.loads(text)
    n_refused, n_changes = 0, share.rounds(12, 40)
    for _ in range(n_changes):
        document = json.loads(outer["mod"])
        node = rng.choice(document["nodes"])
        if isinstance(node.get("data"), dict) and node["data"]:
            field = rng.choice(sorted(node["data"]))
            values = [0, -1, rng.randrange(len(document["nodes"])), 2**62, "x", None, [], {}]
            node["data"][field] = rng.choice(values)
        else:
            node["type"] = rng.choice(["ir.IRModule", "tirx.For", "int", "tirx.Nothing"])
        changed = json.dumps(outer | {"mod": json.dumps(document)})
        try:
            parser.parse(tir(changed.encode()), "llvm")
        except errors.InvalidRequest as error:
            assert str(error) and "\n" not in str(error)
            n_refused += 1
    assert n_refused >= n_changes // 2


def broken(code: str) -> parsing.Parser:
    """A parser whose child runs `code` in place of its reader."""
    made = parsing.Parser()
    made._run_child = lambda header, content: run_child(header, code)  # type: ignore
    return made


def run_child(header: bytes, code: str) -> bytes | None:
    """As `Parser._run_child`, in a fresh process that runs `code` in place of the reader."""
    script = f"""
import json, os, sys
from felix import without_torch
from server.parsing import child as parsing_child
def reader(request, content):
    {code}
parsing_child._reply = reader
class Pipe:
    def recv_bytes(self): return sys.stdin.buffer.read() or b""
    def send_bytes(self, data): os.write(1, data)
    def fileno(self): return 1
    def close(self): pass
parsing_child.serve(Pipe())
"""
    done = subprocess.run([sys.executable, "-c", script], input=header, capture_output=True)
    return done.stdout or None


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import ctypes; ctypes.string_at(0)", "crashed the reader"),
        ("bytearray(64 << 30)", "more memory than the [0-9,]+ MiB"),
        ("f = lambda: f(); f()", "nested too deeply"),
        ("open('/tmp/felix-test-written', 'w').write('x' * 10**6)", "crashed the reader"),
    ],
)
def test_what_breaks_the_reader_is_an_invalid_request(code: str, message: str) -> None:
    with pytest.raises(errors.InvalidRequest, match=message):
        broken(code).parse(GEMM, "llvm")


def test_a_reader_that_hangs_is_ended(parser: parsing.Parser) -> None:
    parser.operators()  # the fork server is there
    with pytest.raises(errors.InvalidRequest, match=r"longer than 0\.001 s"):
        parsing.Parser(seconds=0.001).parse(GEMM, "llvm")


def test_this_process_loads_no_engine() -> None:
    script = (
        "import sys; from server import commands; from server.parsing import parser; "
        "from server.database import schema; from server.store import blobs, jobs; "
        "bad = {'tvm', 'torch', 'sympy', 'numpy', 'onnx'} & set(sys.modules); assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_child_knows_every_kind() -> None:
    with pytest.raises(workloads.catalogue.errors.WorkloadError, match="unknown kind"):
        child._tasks({"kind": "x", "name": "", "target": "llvm"}, b"")


def test_a_model_with_nothing_to_tune_is_refused_with_the_reason(parser: parsing.Parser) -> None:
    content = onnx_models.model([onnx_models.node("Identity", ["x"], ["y"])]).SerializeToString()
    message = "no program that Felix can tune: its outputs are constants, views, or"
    with pytest.raises(errors.InvalidRequest, match=message):
        parser.parse(onnx_file(content), "llvm")


def test_of_many_reasons_three_are_told() -> None:
    groups = [{"name": f"sort{number}", "untuned": "it sorts"} for number in range(5)]
    message = child._nothing(groups)
    assert message.endswith(
        "can tune: sort0: it sorts; sort1: it sorts; sort2: it sorts and 2 more"
    )


def test_a_parser_that_is_taken_over_gets_nothing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outcome comes back as the reply: the child has nothing to write to."""
    monkeypatch.setenv("FELIX_DATABASE_URL", besieged.SECRET)
    place = besieged.Besieged.make(tmp_path)
    modules = tmp_path / "modules"
    modules.mkdir()
    code = place.code().replace("os.write(2, ", "outcomes.append(")
    (modules / "attacked_forks.py").write_text(f"""
import sys
from felix import without_torch
from felix.processes import fork_loop
from server.parsing import child, fork_server_main
def attack(request, content):
    outcomes = []
    exec({code!r}, {{"outcomes": outcomes}})
    return {{"operators": {{"log": outcomes[0].decode()}}}}
child._reply = attack
fork_loop.serve(sys.argv[1:], lambda: None, fork_server_main._work)
""")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(modules), *sys.path]))
    server = fork_server.ForkServer("attacked_forks", 120)
    try:
        server.launch()
        place.facts["pids"] += [server.pid]
        reply = parsing.Parser(forks=lambda: server).operators()
    finally:
        server.close()
        place.close()
    assert place.harm(reply["log"]) == {}


def test_what_a_library_prints_does_not_become_the_error(tmp_path: pathlib.Path) -> None:
    """Standard output of a service is often a file, and the child may not write to files."""
    script = """
from server import errors
from server.parsing import parser
workload = parser.Workload(kind="onnx", name="n", content=b"\\x08\\x01garbage" * 50)
try:
    parser.Parser(seconds=60).parse(workload, "llvm")
except errors.InvalidRequest as error:
    open("message", "w").write(str(error))
"""
    with open(tmp_path / "log", "wb") as log:
        subprocess.run(
            [sys.executable, "-c", script],
            stdout=log,
            stderr=log,
            cwd=tmp_path,
            check=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
    message = (tmp_path / "message").read_text()
    assert "not an ONNX model" in message and "too large" not in message


def test_where_confinement_is_required_nothing_starts_without(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confine, "available", lambda: confine.Confinement(None, False))
    chosen = settings.Settings(data_dir=tmp_path, require_confinement=True)
    for start in (
        lambda: commands.run_tuner(chosen, None, 1),
        lambda: commands.serve(chosen, with_tuner=False),
    ):
        with pytest.raises(errors.SettingsError, match=r"no Landlock.*no seccomp"):
            start()
