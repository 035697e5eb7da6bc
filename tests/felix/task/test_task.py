"""Tasks: FLOPs and minimal bytes against closed forms, keys, serialisation, refused programs."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys

import pytest
import tvm
import tvm_ffi
from tvm import te

from felix import errors, target, workloads
from felix.task import Task
from felix.tir import bounds, grammar, sandbox
from tests.support import share
from tests.support.tir_programs import function

A4 = 'A: T.Buffer((4,), "float32")'
B4 = 'B: T.Buffer((4,), "float32")'
COPY = """
for i in range(4):
    with T.sblock("copy"):
        v = T.axis.spatial(4, i)
        B[v] = {value}
"""


@pytest.mark.parametrize(
    "text, flops",
    [
        ("gemm:7,11,13", 2 * 7 * 11 * 13),
        ("gemm:7,11,13,batch=5", 2 * 5 * 7 * 11 * 13),
        ("gemm:7,11,13,epilogue=bias+relu", 2 * 7 * 11 * 13 + 2 * 7 * 11),
        ("gemm:7,11,13,epilogue=gelu+residual", 2 * 7 * 11 * 13 + (5 + 1) * 7 * 11),
        ("gemm:4096,4096,4096", 2 * 4096**3),
        ("conv2d:2,14,14,8,16,3,padding=1", 2 * 2 * 14 * 14 * 8 * 16 * 9),
        ("conv2d:1,15,15,8,16,3,padding=1,stride=2", 2 * 8 * 8 * 8 * 16 * 9),
        ("conv2d:1,14,14,8,16,3,padding=1,groups=4", 2 * 14 * 14 * 2 * 16 * 9),
        ("depthwise_conv2d:1,14,14,8,3,padding=1", 2 * 14 * 14 * 8 * 9),
        ("conv_transpose2d:1,7,7,4,8", 2 * 14 * 14 * 4 * 8 * 16),
        ("pool2d:1,8,8,4", 4 * 4 * 4 * 4),
        ("pool2d:1,8,8,4,kind=avg", 4 * 4 * 4 * (4 + 1)),
        ("reduce:6x7x8,axes=0+2", 6 * 7 * 8),
        ("reduce:6x7x8,axes=1,kind=max", 6 * 7 * 8),
        ("reduce:6x7x8,axes=1,kind=mean", 6 * 7 * 8 + 6 * 8),
        ("softmax:6x10", 6 * 10 * (1 + 2 + 1 + 1)),
        ("layer_norm:6x10", 6 * 10 * (1 + 1 + 2 + 3) + 6 * (1 + 3)),
        ("rms_norm:6x10", 6 * 10 * (2 + 2) + 6 * 3),
        ("elementwise:6x10,ops=add+relu+tanh", 3 * 60),
        ("gemm:7,11,13,dtype=float16", 2 * 7 * 11 * 13),
    ],
)
def test_flops_equal_the_closed_form(text, flops):
    assert workloads.parse(text).flops == flops


@pytest.mark.parametrize(
    "text, floats",
    [
        ("gemm:7,11,13", 7 * 13 + 13 * 11 + 7 * 11),
        ("gemm:7,11,13,epilogue=bias+residual", 7 * 13 + 13 * 11 + 2 * 7 * 11 + 11),
        ("conv2d:1,14,14,8,16,3,padding=1", 14 * 14 * 8 + 9 * 8 * 16 + 14 * 14 * 16),
        # a 1x1 kernel with stride 2 needs a quarter of the image
        ("conv2d:1,14,14,8,16,1,stride=2", 7 * 7 * 8 + 8 * 16 + 7 * 7 * 16),
        # 13 of 14 rows and columns are covered by six windows of 3 at stride 2
        ("conv2d:1,14,14,8,16,3,stride=2", 13 * 13 * 8 + 9 * 8 * 16 + 6 * 6 * 16),
        # padding 1 shifts the windows: rows -1..1, 3..5, ...; with kernel 1, rows 1, 3, 5, ..
        ("conv2d:1,8,8,1,1,1,stride=2,padding=1", 4 * 4 + 1 + 5 * 5),
        ("conv_transpose2d:1,7,7,4,8", 7 * 7 * 4 + 16 * 4 * 8 + 14 * 14 * 8),
        ("pool2d:1,9,9,4", 8 * 8 * 4 + 4 * 4 * 4),
        ("softmax:6x10", 2 * 60),
        ("layer_norm:6x10", 2 * 60 + 20),
        ("reduce:6x10", 61),
        ("elementwise:6x10,ops=add@1+mul@", 60 + 10 + 1 + 60),
        ("elementwise:65536x65536,ops=relu", 2 * 2**32),
    ],
)
def test_minimal_bytes_equal_the_closed_form(text, floats):
    assert workloads.parse(text).min_bytes == 4 * floats


def test_bytes_follow_the_dtype():
    assert workloads.gemm(7, 11, 13, dtype="float64").min_bytes == 8 * (7 * 13 + 13 * 11 + 77)
    assert workloads.gemm(7, 11, 13, dtype="float16").min_bytes == 2 * (7 * 13 + 13 * 11 + 77)


def test_flops_of_branches_and_selections():
    guarded = function(COPY.format(value="T.if_then_else(v < 2, T.exp(A[v]) + 1.0, A[v])"), A4, B4)
    assert Task.from_prim_func(guarded).flops == 4 * 2
    selected = function(COPY.format(value="T.Select(v < 2, T.exp(A[v]), A[v] * 2.0)"), A4, B4)
    assert Task.from_prim_func(selected).flops == 4 * 2
    integers = function(COPY.format(value='T.Cast("float32", v * 2 + 1)'), A4, B4)
    assert Task.from_prim_func(integers).flops == 0


def test_flops_agree_with_tvm_where_tvm_counts_the_same():
    from tvm.s_tir.analysis import estimate_tir_flops

    for text in ("gemm:32,48,16", "conv2d:1,8,8,4,8,3", "reduce:16x8,axes=1"):
        task = workloads.parse(text)
        assert task.flops == estimate_tir_flops(task.mod), text


def test_the_function_may_be_large():
    task = workloads.conv2d(32, 224, 224, 64, 512, 3, padding=1, stride=2)
    assert task.flops == 2 * 32 * 112 * 112 * 512 * 64 * 9
    assert task.min_bytes == 4 * (32 * 224 * 224 * 64 + 9 * 64 * 512 + 32 * 112 * 112 * 512)


def test_key_depends_on_program_and_target_only():
    task = workloads.gemm(8, 9, 10)
    again = Task.from_prim_func(task.func, "llvm", name="other", weight=7)
    assert (again.name, again.weight, again.key) == ("other", 7, task.key)
    assert workloads.gemm(8, 9, 11).key != task.key
    assert workloads.gemm(8, 9, 10, target="cuda").key != task.key
    assert workloads.gemm(8, 9, 10, target="llvm -num-cores 64").key != task.key


def test_key_is_the_same_in_another_process():
    code = (
        "from felix import without_torch, workloads;"
        "print(workloads.gemm(8, 9, 10, target='cuda').key)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="."
    )
    assert done.stdout.strip() == workloads.gemm(8, 9, 10, target="cuda").key


@pytest.mark.parametrize("kind", ["llvm", "cuda -arch sm_80"])
def test_json_and_pickle_round_trip(kind):
    task = Task.from_prim_func(workloads.softmax((6, 10)).func, kind, "mine", 3)
    for copy in (Task.from_json(task.to_json(), trusted=True), pickle.loads(pickle.dumps(task))):
        assert (copy.name, copy.weight, copy.flops) == ("mine", 3, task.flops)
        assert copy.key == task.key
    elsewhere = Task.from_json(task.to_json(), "llvm -num-cores 3", trusted=True)
    assert elsewhere.target.attrs["num-cores"] == 3


def test_untrusted_json_of_a_bare_module_is_accepted():
    task = workloads.gemm(8, 9, 10)
    read = Task.from_json(tvm.ir.save_json(task.mod), "llvm")
    assert read.key == task.key


def test_tasks_are_immutable_and_printed_shortly():
    task = workloads.gemm(8, 9, 10)
    with pytest.raises(AttributeError):
        task.flops = 3
    assert repr(task) == "Task('gemm_8x9x10', llvm, weight=1, flops=1,440)"


def test_from_te_takes_its_name_and_target():
    x = te.placeholder((8,), name="x")
    y = te.compute((8,), lambda i: x[i] + 1.0, name="y")
    task = Task.from_te([x, y], "cuda", name="plus_one")
    assert (task.name, task.flops, task.target.kind.name) == ("plus_one", 8, "cuda")
    with pytest.raises(errors.WorkloadError, match="TVM cannot make a function"):
        Task.from_te([x, "y"])


def _filled(loop: str) -> str:
    return f"""
for i in {loop}:
    with T.sblock("x"):
        v = T.axis.spatial(4, i)
        A[v] = T.float32(0)
"""


REFUSED = {
    "a dynamic shape": (
        """
A = T.match_buffer(a, (n,), "float32")
for i in range(n):
    with T.sblock("x"):
        v = T.axis.spatial(n, i)
        A[v] = T.float32(0)
""",
        ["a: T.handle", "n: T.int32"],
        "dynamic",
    ),
    "a scalar parameter": (COPY.format(value="s"), [A4, B4, "s: T.float32"], "scalar"),
    "an unsupported dtype": (
        COPY.format(value="A[v]"),
        ['A: T.Buffer((4,), "float8_e4m3fnuz")', 'B: T.Buffer((4,), "float8_e4m3fnuz")'],
        "unsupported dtype float8_e4m3fnuz",
    ),
    "a read out of bounds": (COPY.format(value="A[v + 1000000]"), [A4, B4], "out of bounds"),
    "an index from data": (
        COPY.format(value="A[I[v]]"),
        [A4, 'I: T.Buffer((4,), "int32")', B4],
        "depends on data",
    ),
    "an external call": (
        COPY.format(value='T.call_extern("float32", "system", A[v])'),
        [A4, B4],
        "call_extern",
    ),
    "a packed call": (
        """
for i in range(4):
    with T.sblock("x"):
        v = T.axis.spatial(4, i)
        T.evaluate(T.call_packed("os.remove", v))
""",
        [A4],
        "unsupported statement 'Evaluate'",
    ),
    "a pragma": (
        _filled('T.serial(4, annotations={"pragma_import_c": "int x;"})'),
        [A4],
        "pragma_import_c",
    ),
    "a bound loop": (
        _filled('T.thread_binding(4, thread="threadIdx.x")'),
        [A4],
        "already scheduled",
    ),
    "a parallel loop": (_filled("T.parallel(4)"), [A4], "already scheduled"),
    "plain loops": ("for i in range(4):\n    A[i] = T.float32(0)", [A4], "no root block"),
    "a loop of no iterations": (_filled("range(0)"), [A4], "extent"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_programs_outside_the_grammar_are_refused(what):
    body, params, message = REFUSED[what]
    with pytest.raises(errors.WorkloadError, match=message) as caught:
        Task.from_prim_func(function(body, *params))
    assert "\n" not in str(caught.value)


def test_only_prim_funcs_and_positive_weights_make_tasks():
    func = workloads.gemm(2, 2, 2).func
    for weight in (0, -1, float("nan"), float("inf"), "1", True):
        with pytest.raises(errors.WorkloadError, match="weight"):
            Task.from_prim_func(func, weight=weight)
    for wrong in (None, 3, "x", tvm.IRModule({"main": func})):
        with pytest.raises(errors.WorkloadError, match="needs a TIR PrimFunc"):
            Task.from_prim_func(wrong)


def test_attributes_that_steer_code_generation_are_dropped():
    func = workloads.gemm(2, 2, 2).func.with_attr("global_symbol", "evil").with_attr("x", 1)
    task = Task.from_prim_func(func)
    assert task.name == "evil"
    assert set(task.func.attrs.keys()) == {"global_symbol", "s_tir", "tirx.noalias"}
    assert task.key == workloads.gemm(2, 2, 2).key


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[1]", "must be an object"),
        ('{"felix_task": 99}', "task format 99"),
        ('{"felix_task": 1, "name": 3}', "'name' is missing or malformed"),
        (b"{}", "must be text"),
    ],
)
def test_malformed_text_is_refused_without_a_child(text, message):
    with pytest.raises(errors.WorkloadError, match=message):
        Task.from_json(text, "llvm")


def test_text_without_a_target_needs_one():
    with pytest.raises(errors.WorkloadError, match="names no target"):
        Task.from_json(tvm.ir.save_json(workloads.gemm(2, 2, 2).mod))
    with pytest.raises(errors.TargetError, match="nonsense"):
        Task.from_json(workloads.gemm(2, 2, 2).to_json(), "nonsense")


def test_long_text_is_refused():
    text = json.dumps({"root_index": 0, "pad": " " * sandbox.MAX_JSON_CHARACTERS})
    with pytest.raises(errors.WorkloadError, match="at most"):
        Task.from_json(text, "llvm")


def edited(kind, change):
    """JSON of a small gemm with the first node of a kind changed in place."""
    document = json.loads(tvm.ir.save_json(workloads.gemm(4, 5, 6).mod))
    node = next(node for node in document["nodes"] if node["type"] == kind)
    change(document, node["data"])
    return json.dumps(document)


HOSTILE = {
    "not a graph": ("{}", "cannot read the JSON"),
    "no such node": (
        edited("tirx.For", lambda doc, data: doc.update(root_index=10**9)),
        "invalid node index",
    ),
    "a cycle": (edited("tirx.For", lambda doc, data: data.update(body=doc["root_index"])), "."),
    "an empty body": (edited("s_tir.SBlock", lambda doc, data: data.update(body=0)), "NoneType"),
    "an unknown kind of iterator": (
        edited("tirx.IterVar", lambda doc, data: data.update(iter_type=7)),
        "neither spatial nor a reduction",
    ),
    "another object": (
        json.dumps({"root_index": 0, "nodes": [{"type": "int", "data": 3}]}),
        "holds a int",
    ),
}


@pytest.mark.parametrize("what", share.of(HOSTILE, 3))
def test_hostile_json_is_one_error_not_a_crash(what):
    text, message = HOSTILE[what]
    with pytest.raises(errors.WorkloadError, match=message) as caught:
        Task.from_json(text, "llvm")
    assert "\n" not in str(caught.value)


@pytest.mark.fresh_processes
def test_a_child_that_hangs_or_crashes_is_an_error(monkeypatch):
    monkeypatch.setattr(sandbox, "CHILD_SECONDS", 0.05)
    with pytest.raises(errors.WorkloadError, match="took longer than"):
        sandbox.try_in_child("{}", "{}")


@pytest.mark.parametrize("count, message", [(0, "0 functions"), (2, "2 functions")])
def test_modules_must_have_one_function(count, message):
    func = workloads.gemm(2, 2, 2).func
    mod = tvm.IRModule({f"f{i}": func.with_attr("global_symbol", f"f{i}") for i in range(count)})
    with pytest.raises(errors.WorkloadError, match=message):
        sandbox.load(tvm.ir.save_json(mod))


def test_relax_functions_are_not_tasks():
    from tvm import relax

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(x)
    with pytest.raises(errors.WorkloadError, match="not a TIR PrimFunc"):
        sandbox.load(tvm.ir.save_json(builder.get()))


def test_describe_is_canonical():
    left = target.parse({"kind": "llvm", "num-cores": 2, "mcpu": "haswell"})
    right = target.parse({"mcpu": "haswell", "kind": "llvm", "num-cores": 2})
    assert target.describe(left) == target.describe(right)


def test_indices_that_wrap_around_are_counted_once():
    body = COPY.format(value="A[v % 2] + A[T.max(v - 1, 0) // 3]")
    assert Task.from_prim_func(function(body, A4, B4)).min_bytes == 4 * (2 + 4)


def test_te_programs_beyond_32_bits_get_wide_indices():
    x = te.placeholder((2**16, 2**16), name="x")
    func = Task.from_te([x, te.compute(x.shape, lambda i, j: x[i, j] + 1.0, name="y")]).func
    assert {str(extent.ty.dtype) for extent in func.params[0].shape} == {"int64"}
    small = te.placeholder((2**8, 2**8), name="x")
    func = Task.from_te([small, te.compute(small.shape, lambda i, j: small[i, j] + 1.0)]).func
    assert {str(extent.ty.dtype) for extent in func.params[0].shape} == {"int32"}
    with pytest.raises(bounds.NarrowIndices, match="use int64"):
        Task.from_prim_func(te.create_prim_func([x, te.compute(x.shape, lambda i, j: x[i, j])]))


@pytest.mark.parametrize("factor", ["A[v, 0, 0]", 'A[v, 0, 0] * T.Cast("float32", w)'])
def test_axes_that_no_index_has_are_as_narrow_as_the_others(factor: str) -> None:
    """As those of a convolution's window of one cell; the task can be read back."""
    body = f"""
for i, j in T.grid(T.int64(4), T.int64(2)):
    with T.sblock("sum"):
        v, w = T.axis.remap("SR", [i, j])
        with T.init():
            B[v] = T.float32(0)
        B[v] = B[v] + {factor}
"""
    task = Task.from_prim_func(function(body, 'A: T.Buffer((4, 1, 1), "float32")', B4))
    (block,) = [each for each in grammar.blocks(task.func.body) if each.iter_vars]
    types = [(each.var.ty.dtype, each.dom.extent.ty.dtype) for each in block.iter_vars]
    assert types == [("int32", "int32")] * 2
    again = Task.from_json(task.to_json(), trusted=True)
    assert again.key == task.key and tvm_ffi.structural_equal(again.func, task.func)


def test_tf32_is_a_part_of_a_task() -> None:
    """Of its key, of its JSON and of what is pickled; off unless it is asked for."""
    plain = workloads.gemm(16, 16, 16, target="cuda")
    allowed = workloads.parse("gemm:16,16,16,allow_tf32=true", "cuda")
    assert allowed.allows_tf32 and not plain.allows_tf32
    assert allowed.key != plain.key and allowed.program_key != plain.program_key
    assert plain.allowing_tf32().key == allowed.key
    read = Task.from_json(allowed.to_json(), trusted=True)
    for again in (read, pickle.loads(pickle.dumps(allowed))):
        assert again.allows_tf32 and again.key == allowed.key
    assert not Task.from_json(plain.to_json(), trusted=True).allows_tf32
    assert Task.from_prim_func(allowed.func, "cuda").key == allowed.key
    with pytest.raises(errors.WorkloadError, match="'allow_tf32' must be true or false"):
        Task.from_json(json.dumps(json.loads(plain.to_json()) | {"allow_tf32": 1}))
    with pytest.raises(errors.WorkloadError, match="allow_tf32 is for dtype=float32"):
        workloads.gemm(16, 16, 16, dtype="float16", allow_tf32=True)
