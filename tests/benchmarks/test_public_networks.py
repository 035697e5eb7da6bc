"""Public networks three ways: what the ledger has of all, and the ways of one small module."""

from __future__ import annotations

import functools
import pathlib
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks import public_networks
from benchmarks.conformance import ledger
from benchmarks.conformance.ledger import Found
from benchmarks.networks import public
from tests.support import backend


def test_the_ledger_has_every_network_and_no_defect() -> None:
    known = ledger.read(public_networks.LEDGER)
    assert len(public.NETWORKS) == 20
    assert set(known) == {
        f"{name} {way}" for name in public.NETWORKS for way in public_networks.WAYS
    }
    assert {each.state for each in known.values()} == {"right", "refused"}
    assert sum(each.state == "right" for each in known.values()) >= 57


def test_errors_are_the_largest_of_all_outputs_and_calls() -> None:
    calls = [{"x": torch.ones(4)}, {"x": torch.full((4,), 2.0)}]

    def model(x: torch.Tensor) -> Any:
        return {"a": x, "b": (x * 2, None)}

    def off(call: Any, by: float) -> Any:
        return [call["x"], call["x"] * 2 + by * (call["x"] - 1)]

    judged = functools.partial(public_networks._judged, model, calls)
    assert judged(lambda call: model(**call)) == Found("right", "0e+00")
    assert judged(lambda call: off(call, 1e-4)) == Found("right", "1e-05")
    wrong = Found("wrong", "call 1, output 1: relative error 1.2e-01")
    assert judged(lambda call: off(call, 1.0)) == wrong


def test_the_backend_runs_programs_that_nobody_measured(tmp_path: pathlib.Path) -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU()).eval()
    calls = [{"input": torch.randn(2, 4)} for _ in range(2)]
    found = public_networks._by_backend(model, calls, tmp_path / "known.sqlite", 1)
    assert found.state == "right" and found.sentence.endswith("2 operators in 1 parts")


@pytest.mark.slow("runs two networks of the extra three ways")
def test_two_networks(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers", reason="the extra networks is optional")
    path = tmp_path / "ledger.txt"
    options = ["--only", "^(convnext|vit)$", "--ledger", str(path)]
    assert public_networks.main([*options, "--update"]) == 0
    found = ledger.read(path)
    assert len(found) == 6 and {each.state for each in found.values()} == {"right"}
    capsys.readouterr()
    assert public_networks.main([*options, "--missing"]) == 0
    assert "0 right" in capsys.readouterr().out


@pytest.mark.slow("compiles the steps of two decoders, for each number of tokens")
@pytest.mark.parametrize("name", ["gpt2", "opt"])
def test_a_decoder_padded_on_the_left_generates_what_pytorch_does(
    name: str, tmp_path: pathlib.Path
) -> None:
    pytest.importorskip("transformers", reason="the extra networks is optional")
    model: Any = public.make(name)[0]
    tokens, mask = torch.randint(3, public.VOCABULARY, (2, 6)), torch.ones(2, 6, dtype=torch.int64)
    tokens[1, :3], mask[1, :3] = 0, 0
    own = model.forward

    def generated() -> torch.Tensor:
        with torch.no_grad():
            options = {"max_new_tokens": 4, "do_sample": False}
            made: torch.Tensor = model.generate(tokens, attention_mask=mask, **options)
        return made

    expected = generated()
    for _ in range(2):  # the first time queues what the second one knows
        torch._dynamo.reset()
        model.forward = backend.compiled(own, tmp_path, dynamic=False)
        assert torch.equal(generated(), expected)
        is_tuned = [part.is_tuned for part in backend.parts()]
        backend.learn(tmp_path)
    assert is_tuned and all(is_tuned)
