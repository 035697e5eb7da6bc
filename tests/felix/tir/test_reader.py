"""Programs from JSON: what is not checked does not survive, and what is wrong is refused."""

from __future__ import annotations

import json
import time

import pytest
import tvm

from felix import errors, workloads
from felix.task import Task
from felix.tir import expressions, grammar, graph, reader, sandbox, validate
from felix.workloads.suite import CHECK_SUITE
from tests.support import tir_programs
from tests.support.tir_programs import Document, copy


def document():
    """A document of B[v] = exp(A[v]) over 16 elements."""
    return Document(copy("T.exp(A[v])"))


def normalised(text):
    return validate.normalise(sandbox.load(text))


def changed(kind, number=0, **fields):
    """The text with fields of one node of a type changed."""
    doc = document()
    node = doc.all(kind)[number]
    node.update({name: value(doc) if callable(value) else value for name, value in fields.items()})
    return doc.text()


def plain():
    """The program that every accepted text must come down to."""
    return Task.from_prim_func(copy("T.exp(A[v])")).key


SURVIVES_NOTHING = {
    "regions that lie": lambda: changed("s_tir.SBlock", 0, reads=_empty, writes=_empty),
    "an extern call in a region that is read": lambda: _in_region("reads"),
    "an extern call in a region that is written": lambda: _in_region("writes"),
    "an extern call in an annotation of a block": lambda: changed(
        "s_tir.SBlock", 0, annotations=lambda d: _annotation(d, "felix", d.extern())),
    "an extern call in an annotation of a loop": lambda: changed(
        "tirx.For", annotations=lambda d: _annotation(d, "felix", d.extern())),
    "a schedule rule": lambda: changed(
        "s_tir.SBlock", 0, annotations=lambda d: _annotation(d, "schedule_rule", d.string("f"))),
    "an instruction of a schedule": lambda: changed(
        "s_tir.SBlock", 1, annotations=lambda d: _annotation(
            d, "meta_schedule.parallel", d.number(10**9))),
    "a software pipeline": lambda: changed(
        "tirx.For", annotations=lambda d: _annotation(
            d, "software_pipeline_stage", d.add("ffi.Array", [d.number(0)]))),
    "an annotation of TVM's dialect": lambda: changed(
        "tirx.For", annotations=lambda d: _annotation(d, "tirx.kernel_launch", d.number(7))),
    "a type that lies": lambda: changed(
        "ir.Call", ty=lambda d: d.add("ir.PrimType", {"span": 0, "dtype": "float32x64"})),
    "a load of a type that lies": lambda: changed(
        "ir.TensorLoad", ty=lambda d: d.add("ir.PrimType", {"span": 0, "dtype": "float64"})),
    "an alignment that memory has not": lambda: changed("tirx.BufferType", data_alignment=8192),
    "an offset that would be a variable": lambda: changed("tirx.BufferType", offset_factor=512),
    "attributes that steer code generation": lambda: changed("ir.DictAttrs", __dict__=lambda d: (
        d.add("ffi.Map", [d.string("global_symbol"), d.string("main"),
                          d.string("tirx.is_host_func"), d.number(1)]))),
    "names that are code": lambda: changed(
        "ir.Var", name=lambda d: d.string('x;}\nint main(){exit("id");}//')),
    "a source position that is no position": lambda: changed("tirx.For", span=10**9),
}  # fmt: skip


def _empty(doc):
    return doc.add("ffi.Array", [])


def _annotation(doc, key, value):
    return doc.add("ffi.Map", [doc.string(key), value])


def _in_region(field):
    doc = document()
    for region in doc.all("ir.TensorRegion"):
        ranges = doc.nodes[region["region"]]["data"]
        doc.nodes[ranges[0]]["data"].update(min=doc.extern(), extent=doc.number(10**6))
    assert doc.all("s_tir.SBlock")[0][field]
    return doc.text()


@pytest.mark.parametrize("what", SURVIVES_NOTHING)
def test_nothing_unchecked_survives(what):
    func = normalised(SURVIVES_NOTHING[what]())
    script = func.script()
    for word in (
        "extern",
        "system",
        "annotations",
        "schedule_rule",
        "software_pipeline",
        "meta_schedule",
        "is_host_func",
        "align",
        "512",
        "x64",
        ";",
    ):
        assert word not in script
    assert Task.from_prim_func(func).key == plain()


def _callee(make):
    return changed("ir.Call", op=make)


def _variable(doc, name):
    return doc.add(
        "ir.Var", {"span": doc.none(), "ty": doc.all("ir.Call")[0]["ty"], "name": doc.string(name)}
    )


def _index(make):
    """A text whose load has an index that `make` makes."""
    doc = document()
    load = doc.all("ir.TensorLoad")[0]
    load["indices"] = doc.add("ffi.Array", [make(doc)])
    return doc.text()


def _in_block(kind, make):
    """A text whose block has a statement of a type as its body, of fields that `make` makes."""
    doc = document()
    block = next(each for each in doc.all("s_tir.SBlock") if doc.nodes[each["iter_vars"]]["data"])
    block["body"] = index = doc.add(kind, {})
    doc.nodes[index]["data"] = make(doc, index)
    return doc.text()


REFUSED = {
    "a call of a variable named like an operator": (
        lambda: _callee(lambda d: _variable(d, "tirx.exp")), "calls a Var"),
    "a call of a function named like an operator": (
        lambda: _callee(lambda d: d.add("ir.GlobalVar", {
            "span": 0, "ty": d.add("ir.Type", {"span": 0}), "name_hint": d.string("tirx.exp")})),
        "calls a GlobalVar"),
    "a call of an extern function named like an operator": (
        lambda: _callee(lambda d: d.add("relax.expr.ExternFunc", {
            "span": 0, "ty": d.none(), "global_symbol": d.string("tirx.exp")})),
        "calls a ExternFunc"),
    "an operator of another dialect with the same name": (
        lambda: _callee(lambda d: d.add("ir.Op", "tirx.ptx.sqrt")), "operation 'sqrt'"),
    "an operator that runs code": (
        lambda: _callee(lambda d: d.add("ir.Op", "tirx.cuda.func_call")), "func_call"),
    "an extern call as a value": (
        lambda: changed("tirx.BufferStore", value=lambda d: d.extern()), "call_extern"),
    "an extern call as an index": (lambda: _index(lambda d: d.extern()), "call_extern"),
    "an extern call as an iterator's domain": (
        lambda: changed("ir.Range", 0, extent=lambda d: d.extern()), "without a constant domain"),
    "an extern call as the start of a domain": (
        lambda: changed("ir.Range", 0, min=lambda d: d.extern()), "without a constant domain"),
    "an extern call as a loop's extent": (
        lambda: changed("tirx.For", extent=lambda d: d.extern()), "dynamic extent"),
    "an extern call as a loop's start": (
        lambda: changed("tirx.For", min=lambda d: d.extern()), "does not start at 0"),
    "an extern call as a loop's step": (
        lambda: changed("tirx.For", step=lambda d: d.extern()), "has a step"),
    "an extern call as a binding": (
        lambda: changed("s_tir.SBlockRealize", 0, iter_values=lambda d: d.add(
            "ffi.Array", [d.extern()])), "call_extern"),
    "an extern call as a predicate": (
        lambda: changed("s_tir.SBlockRealize", 0, predicate=lambda d: d.extern()), "call_extern"),
    "an extern call as a buffer's extent": (
        lambda: changed("tirx.BufferType", shape=lambda d: d.add("ffi.Array", [d.extern()])),
        "dynamic shape"),
    "an extern call as a buffer's offset": (
        lambda: changed("tirx.BufferType", elem_offset=lambda d: d.extern()), "element offset"),
    "an extern call as a buffer's stride": (
        lambda: changed("tirx.BufferType", strides=lambda d: d.add("ffi.Array", [d.extern()])),
        "explicit strides"),
    "an extern call as a buffer's address": (
        lambda: changed("tirx.BufferType", allocated_addr=lambda d: d.add(
            "ffi.Array", [d.extern()])), "fixed address"),
    "a layout of a buffer": (
        lambda: changed("tirx.BufferType", layout=lambda d: d.extern()), "has a layout"),
    "a thread": (
        lambda: changed("tirx.For", thread_binding=lambda d: d.extern()), "already scheduled"),
    "an iterator that is a thread": (
        lambda: changed("tirx.IterVar", thread_tag=lambda d: d.string("threadIdx.x")),
        "bound to a thread"),
    "a matched buffer": (
        lambda: changed("s_tir.SBlock", 0, match_buffers=lambda d: d.add(
            "ffi.Array", [d.extern()])), "matches a buffer"),
    "a pragma": (
        lambda: changed("tirx.For", annotations=lambda d: _annotation(
            d, "pragma_import_llvm", d.string("x"))), "pragma_import_llvm"),
    "a storage scope": (
        lambda: changed("tirx.BufferType", storage_scope=lambda d: d.string("shared")),
        "storage scope 'shared'"),
    "an operator with too few arguments": (
        lambda: changed("ir.Call", args=_empty), "takes 1 arguments"),
    "an operator of the wrong type": (
        lambda: changed("ir.Call", args=lambda d: d.add("ffi.Array", [d.number(1)])),
        "called with a int32"),
    "a store of the wrong type": (
        lambda: changed("tirx.BufferStore", value=lambda d: d.number(1)), "is given a int32"),
    "a load with too few indices": (
        lambda: changed("ir.TensorLoad", indices=_empty), "with 0 indices"),
    "a number that does not fit": (
        lambda: _index(lambda d: d.number(2**31)), "does not fit its type int32"),
    "a number of a vector type": (
        lambda: _index(lambda d: d.number(3, "int32x4")), "a type that is no integer"),
    "an index of 8 bits": (
        lambda: _index(lambda d: d.number(3, "int8")), "neither int32 nor int64"),
    "a variable from elsewhere": (
        lambda: _index(lambda d: _variable(d, "q")), "'q' is used where no loop"),
    "a loop variable inside a block": (
        lambda: _index(lambda d: d.all("tirx.For")[0]["loop_var"]),
        "'i' is used where no loop, iterator or let defines it"),
    "an unknown field": (lambda: changed("tirx.For", more=1), "has not the fields"),
    "a missing field": (lambda: _without("tirx.For", "body"), "has not the fields"),
    "a field that is a list": (lambda: changed("tirx.For", body=[1]), "neither a number nor"),
    "a reference that is a float": (lambda: changed("tirx.For", body=1.5), "not an integer"),
    "a reference that is true": (lambda: changed("tirx.For", body=True), "not an integer"),
    "a node that is not there": (
        lambda: changed("tirx.For", body=10**30), "invalid node index beyond 2"),
    "a negative node": (lambda: changed("tirx.For", body=-1), "invalid node index -1"),
    "a circle of statements": (lambda: _in_block("tirx.IfThenElse", lambda d, index: {
        "span": 0, "condition": d.number(1, "bool"), "then_case": index, "else_case": d.none()}),
        "levels deep"),
    "a statement of its own kind": (
        lambda: _in_block("tirx.Evaluate", lambda d, _: {"span": 0, "value": d.extern()}),
        "unsupported statement 'Evaluate'"),
    "a while loop": (lambda: _in_block("tirx.While", lambda d, _: {}), "'While'"),
    "a let of nothing": (lambda: _index(lambda d: d.add("prim.Let", {})), "not the fields"),
    "a shift of nothing": (lambda: _index(lambda d: d.add("prim.LShift", {})), "not the fields"),
    "a huge name of a type": (
        lambda: _index(lambda d: d.add("prim." + "x" * 10**6, {})), "unsupported operation 'xxx"),
    "a library in the text": (
        lambda: json.dumps({"root_index": 0, "nodes": [{"type": "ffi.Module", "data": "x"}]}),
        "holds a Module"),
    "nested lists": (lambda: "[" * 10**5, "not valid JSON"),
    "an enormous number": (lambda: '{"root_index": ' + "9" * 10**5 + "}", "not valid JSON"),
}  # fmt: skip


def _without(kind, field):
    doc = document()
    del doc.all(kind)[0][field]
    return doc.text()


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_outside_the_grammar_is_refused(what):
    make, message = REFUSED[what]
    with pytest.raises(errors.WorkloadError, match=message) as caught:
        normalised(make())
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_a_buffer_ends_with_its_block():
    body = """
C = T.sblock_alloc_buffer((16,), "float32")
for i in range(16):
    with T.sblock("first"):
        v = T.axis.spatial(16, i)
        C[v] = A[v]
for i in range(16):
    with T.sblock("second"):
        v = T.axis.spatial(16, i)
        B[v] = C[v]
"""
    doc = Document(tir_programs.function(body))
    blocks = {doc.nodes[b["name_hint"]]["data"]: b for b in doc.all("s_tir.SBlock")}
    blocks["first"]["alloc_buffers"] = blocks["root"]["alloc_buffers"]
    blocks["root"]["alloc_buffers"] = _empty(doc)
    with pytest.raises(errors.WorkloadError, match="does not declare"):
        normalised(doc.text())


def test_shared_nodes_do_not_make_the_work_exponential(monkeypatch):
    """Sixty additions of a node to itself are 2^60 nodes when they are written out."""
    doc = document()
    store, ty = doc.all("tirx.BufferStore")[0], doc.all("ir.Call")[0]["ty"]
    for _ in range(60):
        fields = {"span": 0, "ty": ty, "a": store["value"], "b": store["value"]}
        store["value"] = doc.add("prim.Add", fields)
    monkeypatch.setattr(expressions, "MAX_SIZE", 2000)
    with pytest.raises(errors.WorkloadError, match="more than 2000 nodes"):
        normalised(doc.text())


def test_deep_expressions_are_refused():
    doc = document()
    store, ty = doc.all("tirx.BufferStore")[0], doc.all("ir.Call")[0]["ty"]
    for _ in range(5000):
        fields = {"span": 0, "ty": ty, "a": store["value"], "b": store["value"]}
        store["value"] = len(doc.nodes)
        doc.nodes.append({"type": "prim.Add", "data": fields})
    with pytest.raises(errors.WorkloadError, match="levels deep"):
        normalised(doc.text())


def test_a_refusal_repeats_little_of_the_text():
    secret = "s" * 1000
    doc = document()
    doc.all("ir.Var")[0]["name"] = doc.string(secret)
    doc.all("tirx.BufferType")[0]["storage_scope"] = doc.string(secret)
    with pytest.raises(errors.WorkloadError) as caught:
        normalised(doc.text())
    assert "s" * 80 not in str(caught.value) and "sss" in str(caught.value)


def test_directional_and_broken_characters_are_not_shown():
    assert graph.quoted("a\u202eb\ud800") == r"'a\u202eb\ud800'"


def test_annotations_of_the_list_are_kept():
    """Pooling and softmax of imported models carry these; they choose among TVM's own rules."""
    text = changed(
        "s_tir.SBlock",
        0,
        annotations=lambda d: d.add(
            "ffi.Map",
            [
                d.string("schedule_rule"),
                d.string("meta_schedule.pool_max"),
                d.string("axis"),
                d.number(1),
            ],
        ),
    )
    (block,) = (b for b in grammar.blocks(normalised(text).body) if b.iter_vars)
    assert dict(block.annotations) == {"schedule_rule": "meta_schedule.pool_max", "axis": 1}


def test_names_are_made_distinct():
    doc = Document(copy("A[v] + A[v]"))
    for variable in doc.all("ir.Var"):
        variable["name"] = doc.string("x y")
    func = normalised(doc.text())
    assert [parameter.name for parameter in func.params] == ["x_y", "x_y_1"]


@pytest.mark.parametrize("name", ["gemm", "conv2d", "softmax", "max_pool2d_padded"])
def test_a_program_made_anew_is_the_same_program(name):
    func = CHECK_SUITE[name]().func
    made = reader.read(tvm.ir.save_json(func))
    tvm.ir.assert_structural_equal(made, func)
    assert made.script() == func.script()


def test_the_operators_of_the_grammar_are_tvms():
    """Every name of the table is an operator that this TVM has."""
    for name in grammar.FUNCTIONS:
        assert tvm.ir.Op.get(name).name == name


def test_normalising_takes_little():
    """A usual program is read, made anew and proved in tens of milliseconds."""
    func = workloads.parse("conv2d:1,14,14,16,32,3,padding=1,epilogue=bias+relu").func
    validate.normalise(func)
    started = time.process_time()
    validate.normalise(func)
    assert time.process_time() - started < 0.5


def test_a_scalar_parameter_is_refused_by_name():
    func = tir_programs.function(
        'for i in range(4):\n    with T.sblock("x"):\n        v = T.axis.spatial(4, i)\n'
        "        A[v] = s",
        'A: T.Buffer((4,), "float32")',
        "s: T.float32",
    )
    with pytest.raises(errors.WorkloadError, match="parameter 's' is a scalar"):
        validate.normalise(func)


LEAF = """
with T.sblock("only"):
    B[()] = A[()] * T.float32(2)
"""
SCALARS = ('A: T.Buffer((), "float32")', 'B: T.Buffer((), "float32")')


def test_the_root_block_is_called_root_whatever_it_was_called() -> None:
    func = tir_programs.function(
        """
        with T.sblock("whole"):
            T.reads()
            T.writes()
            for i in range(16):
                with T.sblock("root"):
                    v = T.axis.spatial(16, i)
                    B[v] = A[v]
        """
    )
    checked = validate.normalise(func)
    assert [block.name_hint for block in grammar.blocks(checked.body)] == ["root", "root_1"]
    plain = validate.normalise(tir_programs.copy("A[v]"))
    tvm.ir.assert_structural_equal(checked, plain)


def test_a_program_of_one_block_has_a_root_block_around_it() -> None:
    checked = validate.normalise(tir_programs.function(LEAF, *SCALARS))
    root, leaf = grammar.blocks(checked.body)
    assert (root.name_hint, leaf.name_hint) == ("root", "only")
    assert (len(leaf.reads), len(leaf.writes)) == (1, 1)
    tvm.ir.assert_structural_equal(validate.normalise(checked), checked)
