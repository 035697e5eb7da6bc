"""Which tests `make check` runs for a change."""

from __future__ import annotations

import pytest

from tests.support import touched


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
