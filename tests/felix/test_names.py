"""Names: what is one, what is made one, how messages quote them."""

from __future__ import annotations

import pytest

from felix import errors, names

BAD = ["", " ", "a\nb", "a\0b", "a\x1b[31m", "a\u202eb", "a\u2066b", "a\ud800", "x" * 201]


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_name_is_refused_in_one_short_printable_line(name: str) -> None:
    with pytest.raises(errors.WorkloadError, match=r"^a name ") as caught:
        names.check("a name", name)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 200


@pytest.mark.parametrize("name", ["x", "gemm 8x8", "Ünïcode ✓ 卷积", "x" * 200])
def test_names_stay_as_they_are(name: str) -> None:
    assert names.check("a name", name) == names.derived(name) == name


@pytest.mark.parametrize("text", [*BAD, "x" * 10**6, "\u202e" * 10**6])
def test_a_derived_name_is_a_name(text: str) -> None:
    assert names.problem(names.derived(text)) is None


def test_a_long_derived_name_ends_with_an_ellipsis() -> None:
    assert names.derived("x" * 300) == "x" * 199 + "…"


@pytest.mark.parametrize("text", ["a; evil()", "1x", "a b", 'a\n#include "/x"', "é", "", "a/b"])
def test_identifiers_are_made_and_stay_apart(text: str) -> None:
    taken: set[str] = set()
    made = [names.identifier(text, taken) for _ in range(3)]
    assert len(set(made)) == 3 and all(map(names.is_identifier, made))
    assert not names.is_identifier(text)


def test_an_identifier_stays_as_it_is() -> None:
    assert names.identifier("conv.weight_1", set()) == "conv.weight_1"
    assert names.is_identifier("x" * 200) and not names.is_identifier("x" * 201)


@pytest.mark.parametrize("text", ["two\nlines\tand\r\nmore", "no-break\xa0space", ""])
def test_texts_of_several_lines(text: str) -> None:
    assert names.text_problem(text) is None


@pytest.mark.parametrize("text", ["a\0", "a\x1b[0m", "\u202eabc", "\ud800"])
def test_texts_without_control_characters(text: str) -> None:
    assert names.text_problem(text) == "has control characters"


def test_quotes_are_short_and_escaped() -> None:
    assert names.quoted("a\nb") == r"'a\nb'"
    assert names.quoted(["x" * 10**6]).endswith("...") and len(names.quoted("é" * 10**6)) < 70


def test_all_texts_of_a_json_value() -> None:
    assert sorted(names.strings({"a": ["b", {"c": 1}], "d": None})) == ["a", "b", "c", "d"]
