"""Compiled programs: exact against sympy-free evaluation, gradients, merging, storing."""

from __future__ import annotations

import io
import random
import subprocess
import sys
import time

import numpy as np
import pytest
import sympy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from felix import errors
from felix.autodiff import graph, smoothing, torch_function
from felix.autodiff import program as autodiff_program
from felix.symbolic import expr
from tests.support import synthetic

torch.set_num_threads(1)


def symbols(n: int) -> list[sympy.Symbol]:
    return [expr.variable(f"v{i}") for i in range(n)]


@pytest.fixture(scope="module")
def typical() -> tuple[list[sympy.Symbol], list[sympy.Expr], autodiff_program.FormulaProgram]:
    variables = symbols(12)
    formulas = synthetic.formulas(variables, rows=3, features=120)
    flags = [i % 3 == 0 for i in range(len(formulas))]
    return variables, formulas, autodiff_program.FormulaProgram.compile(formulas, variables, flags)


def evaluate(node: sympy.Expr, point: dict[sympy.Symbol, int]) -> float:
    """Plain recursive evaluation in Python numbers: what the formula says, no vectorisation."""
    memo: dict[sympy.Expr, float] = {}

    def value(n: sympy.Expr) -> float:
        if n not in memo:
            memo[n] = compute(n)
        return memo[n]

    def compute(n: sympy.Expr) -> float:
        if n.is_Symbol:
            return point[n]
        if n.is_Number:
            return sympy.Rational(n)
        if type(n) in smoothing.RULES:
            folded = n.func(*[sympy.Rational(value(a)) for a in n.args])
            assert folded.is_Rational
            return folded
        if n.is_Add:
            return sum(value(a) for a in n.args)
        if n.is_Mul:
            return sympy.prod([value(a) for a in n.args])
        if n.is_Pow:
            return sympy.Rational(value(n.base)) ** n.exp
        assert isinstance(n, sympy.log)
        return sympy.Rational(float(np.log(float(value(n.args[0])))))

    return float(value(node))


def test_exact_equals_plain_evaluation(typical) -> None:
    variables, formulas, program = typical
    rng = random.Random(1)
    points = [
        [2 ** rng.randint(0, 5) * rng.choice([1, 1, 3, 7]) for _ in variables] for _ in range(3)
    ]
    raw = program.exact(np.asarray(points), raw=True)
    for row, point in zip(raw, points, strict=True):
        at = dict(zip(variables, point, strict=True))
        expected = np.asarray([evaluate(f, at) for f in formulas])
        whole = (expected == np.rint(expected)) & (np.abs(expected) < 2**52)
        assert whole.mean() > 0.8
        np.testing.assert_array_equal(row[whole], expected[whole])
        np.testing.assert_allclose(row, expected, rtol=1e-12)


def test_values_do_not_depend_on_the_size_of_the_batch(typical) -> None:
    """Batches are cut into blocks, whose size depends on the number of nodes."""
    variables, formulas, program = typical
    small = autodiff_program.FormulaProgram.compile(formulas[:1], variables)
    points = np.random.default_rng(0).integers(1, 9, (5000, len(variables)))
    for each in (program, small):
        whole = each.exact(points)
        for row in (0, 63, 64, 4999):
            np.testing.assert_array_equal(each.exact(points[row : row + 1])[0], whole[row])


def test_the_reverse_pass_is_made_where_it_is_needed() -> None:
    (x,) = symbols(1)
    program = autodiff_program.FormulaProgram.compile([x * x], [x])
    assert program.exact(np.asarray([[3]])).tolist() == [[9]]
    assert "gathers" not in vars(program.passes)
    _, buffer = program.passes.forward(np.asarray([[3.0]]), 0.1)
    assert program.passes.backward(buffer, np.ones((1, 1))).tolist() == [[6.0]]


def test_log_outputs_are_log2_of_one_plus_v(typical) -> None:
    variables, formulas, program = typical
    points = np.full((2, 12), 4)
    raw, reported = program.exact(points, raw=True), program.exact(points)
    flags = program.log_outputs
    np.testing.assert_allclose(reported[:, flags], np.log2(1 + raw[:, flags]))
    np.testing.assert_array_equal(reported[:, ~flags], raw[:, ~flags])
    x = torch.full((2, 12), 4.0, dtype=torch.float64)
    without = autodiff_program.FormulaProgram.compile(formulas, variables)
    soft, soft_raw = (torch_function.smooth(each, x, 0.1) for each in (program, without))
    expected = torch.sign(soft_raw) * torch.log2(1 + soft_raw.abs())
    torch.testing.assert_close(soft[:, flags], expected[:, flags])
    torch.testing.assert_close(soft[:, ~flags], soft_raw[:, ~flags])


def test_smooth_converges_to_exact(typical) -> None:
    _, _, program = typical
    rng = np.random.default_rng(3)
    points = 2 ** rng.integers(0, 6, (32, 12))
    exact = program.exact(points)
    errors_at = []
    for temperature in (0.3, 1e-2, 1e-5, 1e-12):
        soft = torch_function.smooth(
            program, torch.tensor(points, dtype=torch.float64), temperature
        )
        assert torch.isfinite(soft).all()
        errors_at.append(np.abs(soft.numpy() - exact) / (1 + np.abs(exact)))
    means = [float(e.mean()) for e in errors_at]
    assert means[0] > means[1] > means[2] > means[3]
    assert errors_at[-1].max() < 1e-3


@pytest.mark.parametrize("temperature", [1.0, 0.2])
def test_gradients_agree_with_differences(typical, temperature: float) -> None:
    _, _, program = typical
    generator = torch.Generator().manual_seed(0)
    x = torch.exp(3 * torch.rand(4, 12, dtype=torch.float64, generator=generator))
    weights = torch.randn(len(program.outputs), dtype=torch.float64, generator=generator)

    def loss(at: torch.Tensor) -> torch.Tensor:
        return (torch_function.smooth(program, at, temperature) * program_scale * weights).sum(1)

    program_scale = 1.0 / (1.0 + torch_function.smooth(program, x, temperature).abs().amax(0))
    x.requires_grad_(True)
    loss(x).sum().backward()
    assert torch.isfinite(x.grad).all()
    for column in range(12):
        step = torch.zeros_like(x)
        step[:, column] = 1e-6 * x.detach()[:, column]
        with torch.no_grad():
            high, low = loss(x + step), loss(x - step)
        difference = (high - low) / (2 * step[:, column])
        torch.testing.assert_close(x.grad[:, column], difference, rtol=2e-3, atol=2e-5)


def test_gradient_flows_through_log_outputs_and_shared_nodes() -> None:
    a, b = symbols(2)
    shared = a * b
    program = autodiff_program.FormulaProgram.compile(
        [shared + shared**2, shared], [a, b], [True, False]
    )
    x = torch.tensor([[3.0, 5.0]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: torch_function.smooth(program, t, 0.5), (x,))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 2**26), st.integers(1, 2**25), st.integers(1, 10**6))
def test_integers_are_exact_below_2_to_52(a: int, b: int, c: int) -> None:
    x, y, z = symbols(3)
    formulas = [
        expr.FloorDiv(x * y, z),
        expr.CeilDiv(x * y, z),
        expr.FloorMod(x * y, z),
        x * y * z / z,
        x * y / 3 * 3,
        expr.Maximum(x * y - z, z),
    ]
    program = autodiff_program.FormulaProgram.compile(formulas, [x, y, z])
    values = program.exact(np.asarray([[a, b, c]]))[0]
    n = a * b
    assert values.tolist() == [n // c, -(-n // c), n % c, n, n, max(n - c, c)]


def test_quotients_are_divided_not_multiplied_by_a_reciprocal() -> None:
    (x,) = symbols(1)
    program = autodiff_program.FormulaProgram.compile(
        [49 / x, sympy.Rational(1, 49) * x, 7 * x**-2], [x]
    )
    assert program.exact(np.asarray([[49], [7]])).tolist() == [
        [1.0, 1.0, 7 / 2401],
        [7, 1 / 7, 7 / 49],
    ]


def test_equal_subexpressions_are_one_node() -> None:
    x, y, z = symbols(3)
    one = autodiff_program.FormulaProgram.compile([expr.CeilDiv(x * y, z)], [x, y, z])
    again = autodiff_program.FormulaProgram.compile(
        [expr.CeilDiv(x * y, z), 3 * expr.CeilDiv(y * x, z), x * y], [x, y, z]
    )
    assert again.passes.n_nodes == one.passes.n_nodes + 1


def test_arguments_of_commutative_operators_are_not_mixed_up_with_others() -> None:
    x, y = symbols(2)
    program = autodiff_program.FormulaProgram.compile(
        [expr.Less(x, y), expr.Less(y, x), expr.Minimum(y, x), expr.Minimum(x, y)], [x, y]
    )
    assert program.exact(np.asarray([[2, 9]])).tolist() == [[1, 0, 2, 2]]


def test_groups_do_not_grow_with_the_number_of_rows() -> None:
    variables = symbols(12)
    small = autodiff_program.FormulaProgram.compile(
        synthetic.formulas(variables, rows=1), variables
    )
    large = autodiff_program.FormulaProgram.compile(
        synthetic.formulas(variables, rows=8), variables
    )
    assert large.passes.n_nodes > 4 * small.passes.n_nodes
    assert len(large.passes.groups) <= len(small.passes.groups) + 12


def test_a_kind_waits_for_its_nodes_that_take_longest() -> None:
    """Two logarithms could be evaluated at once, but the third makes a group of its own then."""
    x, y, z = symbols(3)
    last = sympy.log(expr.Minimum(x * y, y) * z)
    program = autodiff_program.FormulaProgram.compile(
        [sympy.log(x), sympy.log(y), last], [x, y, z]
    )
    assert len(program.passes.groups) == len(["multiply", "Minimum", "multiply", "log"])
    expected = np.log([2.0, 3.0, 3.0 * 5.0])
    np.testing.assert_allclose(program.exact(np.asarray([[2, 3, 5]]))[0], expected)


def test_every_operator_compiles() -> None:
    x, y, z = symbols(3)
    formulas = []
    for operator in expr.OPERATORS:
        n = int(operator.nargs.args[0])
        args = (x / 3 - y,) if n == 1 else (expr.Less(x, y), y, z)[3 - n :]
        if operator is expr.Not:
            args = (expr.Less(x, y),)
        if operator in (expr.And, expr.Or):
            args = (expr.Less(x, y), expr.Less(y, z))
        formulas.append(operator(*args))
    formulas += [
        x * y * z * sympy.log(y),
        sympy.exp(x / 10),
        sympy.sqrt(y),
        sympy.log(z),
        sympy.pi * x,
        2**x,
        x**5,
    ]
    program = autodiff_program.FormulaProgram.compile(formulas, [x, y, z])
    assert {k for k in program.graph.kinds} >= set(graph.KINDS) - {"multiply3"}
    at = {x: sympy.Integer(5), y: sympy.Integer(6), z: sympy.Integer(4)}
    values = program.exact(np.asarray([[5, 6, 4]]))[0]
    for formula, value in zip(formulas, values, strict=True):
        assert float(formula.xreplace(at)) == pytest.approx(value)


def test_deep_formulas_do_not_recurse() -> None:
    (x,) = symbols(1)
    total = x
    for i in range(400):
        total = expr.Minimum(total, x + i) if i % 2 else expr.Maximum(total, x - i)
    program = autodiff_program.FormulaProgram.compile([total], [x])
    assert program.exact(np.asarray([[7]])).shape == (1, 1)


@pytest.mark.parametrize(
    "bad", [sympy.sin(sympy.Symbol("v0")), sympy.Symbol("other"), sympy.I, sympy.oo]
)
def test_unknown_formulas_are_refused(bad: sympy.Expr) -> None:
    with pytest.raises(errors.UnsupportedSchedule):
        autodiff_program.FormulaProgram.compile([bad], ["v0"])


def test_wrong_input_shape_is_refused(typical) -> None:
    _, _, program = typical
    with pytest.raises(errors.DecisionError, match="12"):
        program.exact(np.ones((3, 4)))
    with pytest.raises(ValueError, match="temperature"):
        torch_function.smooth(program, torch.ones(1, 12), 0.0)


def test_outputs_that_are_constants_or_inputs() -> None:
    x, y = symbols(2)
    program = autodiff_program.FormulaProgram.compile(
        [sympy.Integer(3), y, sympy.Integer(0)], [x, y]
    )
    at = torch.tensor([[2.0, 5.0]], requires_grad=True)
    values = torch_function.smooth(program, at, 0.1)
    values.sum().backward()
    assert values.tolist() == [[3.0, 5.0, 0.0]]
    assert at.grad.tolist() == [[0.0, 1.0]]


def test_merge_concatenates_inputs_and_outputs(typical) -> None:
    _, _, program = typical
    x, y = symbols(2)
    other = autodiff_program.FormulaProgram.compile([x * y + 1, x], [x, y], [False, True])
    merged = autodiff_program.FormulaProgram.merge([program, other, program])
    assert merged.symbols == program.symbols + other.symbols + program.symbols
    rng = np.random.default_rng(0)
    points = [rng.integers(1, 9, (5, len(p.symbols))) for p in (program, other, program)]
    expected = np.concatenate(
        [p.exact(v) for p, v in zip((program, other, program), points, strict=True)], axis=1
    )
    np.testing.assert_array_equal(merged.exact(np.concatenate(points, axis=1)), expected)
    t = torch.tensor(np.concatenate(points, axis=1), dtype=torch.float64, requires_grad=True)
    torch_function.smooth(merged, t, 0.3).sum().backward()
    alone = torch.tensor(points[1], dtype=torch.float64, requires_grad=True)
    torch_function.smooth(other, alone, 0.3).sum().backward()
    torch.testing.assert_close(t.grad[:, 12:14], alone.grad)


def test_merge_shares_symbols_and_pads_with_zero() -> None:
    x, y = symbols(2)
    features = autodiff_program.FormulaProgram.compile(
        [expr.CeilDiv(x, y), x], [x, y], [True, False]
    )
    constraints = autodiff_program.FormulaProgram.compile([expr.CeilDiv(x, y) - 4], [x, y])
    merged = autodiff_program.FormulaProgram.merge(
        [features, constraints], share_symbols=True, outputs=[1, None, 0, 2]
    )
    assert merged.symbols == ("v0", "v1")
    assert merged.exact(np.asarray([[9, 2]])).tolist() == [[9.0, 0.0, np.log2(6), 1.0]]
    assert merged.passes.n_nodes == 6  # two symbols, the division, two constants, one sum


def test_merge_keeps_chosen_outputs_of_all_programs_in_their_order(typical) -> None:
    _, _, program = typical
    x, y = symbols(2)
    other = autodiff_program.FormulaProgram.compile([x * y + 1, x], [x, y], [False, True])
    n = len(program.outputs)
    merged = autodiff_program.FormulaProgram.merge([program, other], outputs=[n + 1, 0, None, n])
    points = np.random.default_rng(0).integers(1, 9, (5, 14))
    alone = program.exact(points[:, :12]), other.exact(points[:, 12:])
    expected = [alone[1][:, 1], alone[0][:, 0], np.zeros(5), alone[1][:, 0]]
    np.testing.assert_array_equal(merged.exact(points), np.stack(expected, axis=1))


def test_bytes_round_trip(typical) -> None:
    _, _, program = typical
    again = autodiff_program.FormulaProgram.from_bytes(program.to_bytes())
    points = np.random.default_rng(0).integers(1, 50, (9, 12))
    np.testing.assert_array_equal(again.exact(points), program.exact(points))
    assert again.symbols == program.symbols
    assert again.to_bytes() == program.to_bytes()
    x = torch.tensor(points, dtype=torch.float64)
    assert torch.equal(
        torch_function.smooth(again, x, 0.3), torch_function.smooth(program, x, 0.3)
    )


@pytest.mark.parametrize("damage", ["empty", "cut", "flip", "pickle", "late", "outputs"])
def test_damaged_bytes_are_one_clear_error(typical, damage: str) -> None:
    _, _, program = typical
    data = program.to_bytes()
    if damage == "empty":
        data = b""
    elif damage == "cut":
        data = data[: len(data) // 2]
    elif damage == "flip":
        data = data[:200] + bytes(255 - b for b in data[200:260]) + data[260:]
    else:
        with np.load(io.BytesIO(data)) as file:
            arrays = dict(file)
        if damage == "pickle":
            arrays["kinds"] = np.asarray([{"an": "object"}], dtype=object)
        elif damage == "late":
            arrays["arguments"] = arrays["arguments"] + 10**6
        else:
            arrays["outputs"] = arrays["outputs"] - 10**6
        file = io.BytesIO()
        np.savez(file, **arrays)
        data = file.getvalue()
    with pytest.raises(errors.RecordError):
        autodiff_program.FormulaProgram.from_bytes(data)


def test_relative_constraint_keeps_the_sign_and_the_scale() -> None:
    x, y = symbols(2)
    g = autodiff_program.relative_constraint(4 * x * y - 49152)
    program = autodiff_program.FormulaProgram.compile([g], [x, y])
    values = program.exact(np.asarray([[128, 96], [128, 97], [256, 96], [1, 1]]))[:, 0]
    assert values[0] == pytest.approx(0, abs=1e-12) and values[1] > 0 > values[3]
    assert values[2] == pytest.approx(np.log(2), abs=1e-3)
    condition = expr.Less(x, y)
    assert autodiff_program.relative_constraint(condition) is condition


def test_compiling_is_fast() -> None:
    """3,000 nodes; the best of three against a budget with room for a busy machine."""
    variables = symbols(14)
    formulas = synthetic.formulas(variables, rows=8)
    elapsed_s = []
    for _ in range(3):
        started = time.process_time()
        program = autodiff_program.FormulaProgram.compile(formulas, variables)
        assert len(program.passes.groups) > 0
        elapsed_s.append(time.process_time() - started)
    assert program.passes.n_nodes > 2000
    assert min(elapsed_s) < 0.5


def test_exact_evaluation_does_not_load_torch() -> None:
    code = (
        "import sys, felix.autodiff.program as o, numpy as np\n"
        "p = o.FormulaProgram.compile([__import__('sympy').Symbol('a') * 2], ['a'])\n"
        "assert o.FormulaProgram.from_bytes(p.to_bytes()).exact(np.ones((1, 1)))[0, 0] == 2\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
