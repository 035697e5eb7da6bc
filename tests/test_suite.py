"""Which tests run: `make check` for a change, and the share of the long ones in `make test`."""

from __future__ import annotations

import pytest

from tests.support import share, touched


@pytest.mark.parametrize(
    ("path", "tests"),
    [
        ("felix/measure/pool/local.py", "tests/felix/measure/pool/test_local.py"),
        ("felix/measure/pool/locks/rwlock.py", "tests/felix/measure/pool"),
        ("felix/search/selection.py", "tests/felix/search/test_selection.py"),
        ("costmodel/models/segment_mlp.py", "tests/costmodel/test_models.py"),
        ("tests/felix/search/test_rounding.py", "tests/felix/search/test_rounding.py"),
        ("tests/support/synthetic.py", None),
        ("felix/errors.py", None),
        ("README.md", None),
    ],
)
def test_a_file_leads_to_its_nearest_tests(path: str, tests: str | None) -> None:
    assert (touched.ROOT / path).exists()
    assert touched.tests_of(path) == tests


def test_a_file_is_not_named_beside_its_folder(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = ["felix/measure/pool/local.py", "felix/measure/pool/locks/rwlock.py", "README.md"]
    monkeypatch.setattr(touched, "changed", lambda revision: paths)
    touched.main()
    assert capsys.readouterr().out.split() == ["tests/felix/measure/pool"]


def test_without_a_change_the_core_is_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(touched, "changed", lambda revision: [])
    touched.main()
    assert tuple(capsys.readouterr().out.split()) == touched.CORE
    assert all((touched.ROOT / tests).exists() for tests in touched.CORE)


@pytest.mark.parametrize(
    ("count", "values"),
    [(1, [0]), (2, [0, 9]), (4, [0, 3, 6, 9]), (10, list(range(10))), (99, list(range(10)))],
)
def test_a_share_is_spread_evenly(count: int, values: list[int]) -> None:
    assert share.of(range(10), count, everything=False) == values
    assert share.of(range(10), count, everything=True) == list(range(10))
    assert [share.rounds(count, 500, everything) for everything in (False, True)] == [count, 500]


@pytest.mark.parametrize("reasons", [(), ("",), ("a matrix of all targets",)])
def test_slow_says_why(request: pytest.FixtureRequest, reasons: tuple[str, ...]) -> None:
    item = pytest.Function.from_parent(request.node.parent, name="x", callobj=lambda: None)
    item.add_marker(pytest.mark.slow(*reasons))
    assert share.without_reason([item]) == ([] if any(reasons) else [item.nodeid])
