"""The key of a machine that measures for a service: read once, never shown."""

from __future__ import annotations

import json

import pytest

from felix import errors
from felix.measure.cluster import node, tls
from tests.support import pool_programs as programs

KEY = "felix_0a1b2c3d4e5f_secret_with_underscores"


def test_a_key_is_taken_out_of_the_environment() -> None:
    environment = {"FELIX_WORKER_KEY": f"{KEY}\n", "HOME": "/"}
    digest = tls.take(environment)
    assert environment == {"HOME": "/"} and len(digest) == 64
    assert digest == tls.digest(KEY) != tls.digest(KEY + "x")
    assert tls.take({}) == tls.take({"FELIX_WORKER_KEY": ""}) == ""


@pytest.mark.parametrize("text", ["secret", "felix_0a1b", "felix_0a1b_", "other_0a1b_secret"])
def test_what_is_no_key_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(errors.MeasureError, match="no key of a service: set it to") as raised:
        tls.take({"FELIX_WORKER_KEY": text})
    assert text not in str(raised.value)


def test_a_node_states_the_digest_alone() -> None:
    made = node.Node(node.Settings(builders=1, key=tls.digest(KEY)), programs.OPTIONS)
    try:
        facts = made.facts()
    finally:
        made.close()
    assert json.loads(facts)["key"] == tls.digest(KEY)
    assert "secret" not in facts
