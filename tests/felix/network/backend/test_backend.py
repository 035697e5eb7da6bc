"""What users of `torch.compile` rely on, with tuned programs running."""

from __future__ import annotations

import gc
import pathlib
import warnings
import weakref
from typing import Any

import pytest
import torch
from torch import nn

import felix
from felix.network.backend import entry, tuned_part
from tests.support import backend, networks


def test_convolutions_with_batch_norm(everything_known: pathlib.Path) -> None:
    model, x = networks.Convolutions().train(), torch.randn(2, 3, 6, 6)
    model(x)  # running statistics that are not 0 and 1
    fast = backend.compiled(model.eval(), everything_known, fullgraph=True)
    networks.assert_same(fast, model, x)
    (only,) = backend.parts()
    assert only.is_tuned and not entry.backend_report().graphs[0].sizes[0].pytorch
    # Batch norm is folded into the convolutions: no group of its own.
    assert len(only.groups) == 3
    assert all(each.contender == "felix" for each in only.groups)


@pytest.mark.slow("tunes a transformer twice")
def test_transformer_takes_the_tasks_of_optimize(tmp_path: pathlib.Path) -> None:
    model, tokens = networks.Block().eval(), torch.tensor([[1, 2, 3, 10, 0]])
    tasks = felix.extract_tasks(model, (tokens,), networks.TARGET)
    results = backend.known(tmp_path)
    for task in tasks:
        results.add(task, backend.outcome(task))
    fast = backend.compiled(model, tmp_path)
    networks.assert_same(fast, model, tokens.flip(1))
    (only,) = backend.parts()
    assert only.is_tuned and all(each.is_known for each in only.groups)
    assert len(only.groups) == len(tasks)


def test_what_depends_on_parameters_alone_is_computed_once(everything_known: pathlib.Path) -> None:
    class Normalised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, 8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x @ torch.softmax(self.weight, dim=-1))

    model, x = Normalised().eval(), torch.randn(3, 8)
    fast = backend.compiled(model, everything_known, fullgraph=True)
    networks.assert_same(fast, model, x)
    (only,) = backend.parts()
    tasks = [each.group.name for each in only.groups if each.group.task is not None]
    assert tasks == ["fused_matmul_relu"]
    with torch.no_grad():
        model.weight.mul_(2.0)
    networks.assert_same(fast, model, x)
    (only,) = backend.parts()
    assert only.is_tuned


def test_unsupported_operator_stays_in_pytorch(everything_known: pathlib.Path) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.relu(self.first(x))
            middle, _ = torch.kthvalue(x, 2, dim=1, keepdim=True)
            return self.second(x - middle)

    model, x = Model(), torch.randn(4, 8)
    fast = backend.compiled(model, everything_known)
    networks.assert_same(fast, model, x)
    (graph,) = entry.backend_report().graphs
    assert list(graph.sizes[0].pytorch) == ["aten.kthvalue.default"]
    assert "aten.kthvalue.default: PyTorch: TVM does not import it" in str(entry.backend_report())
    assert backend.tuned_operators() >= {"linear", "relu"}


def test_places_are_read_in_parts_and_masks_in_pytorch(everything_known: pathlib.Path) -> None:
    def call(x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        return torch.relu(x)[:, chosen] + 1.0

    x, places = torch.randn(3, 4), torch.tensor([3, 0, -1, 0])
    fast = backend.compiled(call, everything_known)
    networks.assert_close(fast(x, places), call(x, places))
    assert backend.tuned_operators() == {"relu", "index", "add"}
    mask = torch.tensor([True, False, True, True])
    networks.assert_close(fast(x, mask), call(x, mask))


def test_an_operator_that_gives_another_type_than_it_says(everything_known: pathlib.Path) -> None:
    def call(x: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
        norm = torch.native_batch_norm(x, None, None, mean, variance, True, 0.1, 1e-5)
        return torch.exp(norm[1])

    x, (mean, variance) = torch.randn(2, 3).bfloat16(), torch.ones(2, 3).bfloat16()
    expected = call(x, mean.clone(), variance.clone())
    networks.assert_close(backend.compiled(call, everything_known)(x, mean, variance), expected)
    reason = "PyTorch says float32 of an input that is torch.bfloat16"
    assert reason in [each.reason for each in backend.parts()]


def test_operator_that_fails_alone_leaves_the_rest(everything_known: pathlib.Path) -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        size = {"size": (3, 3), "mode": "bilinear", "antialias": True}
        return nn.functional.interpolate(torch.relu(x), **size) * 2.0

    x = torch.randn(1, 2, 5, 5)
    networks.assert_close(backend.compiled(call, everything_known)(x), call(x))
    assert backend.tuned_operators() == {"relu", "mul"}


class TestTraining:
    def test_runs_in_pytorch_with_one_warning(self, everything_known: pathlib.Path) -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.BatchNorm1d(4)).train()
        fast = backend.compiled(model, everything_known)
        other = backend.compiled(nn.Linear(4, 2), everything_known)
        x = torch.randn(3, 4)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            fast(x).sum().backward()
            fast(x).sum().backward()
            other(x).sum().backward()
        assert sum("computes gradients" in str(each.message) for each in caught) == 1
        assert model[0].weight.grad is not None
        assert int(model[2].num_batches_tracked) == 2
        assert all("gradients" in (g.reason or "") for g in entry.backend_report().graphs)

    def test_gradients_are_those_of_the_model(self, everything_known: pathlib.Path) -> None:
        model, x = networks.Convolutions(), torch.randn(2, 3, 6, 6)
        gradients = []
        for call in (model, backend.compiled(model, everything_known)):
            model.zero_grad()
            call(x)[1].sum().backward()
            gradients.append([each.grad.clone() for each in model.parameters()])  # type: ignore[union-attr]
        networks.assert_close(*gradients)

    def test_no_grad_inside_the_model(self, everything_known: pathlib.Path) -> None:
        linear, x = nn.Linear(4, 4), torch.randn(3, 4)

        def call(x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                return linear(x)

        out = backend.compiled(call, everything_known)(x)
        assert not out.requires_grad and backend.tuned_operators() == {"linear"}
        networks.assert_close(out, linear(x))

    def test_training_then_inference(self, everything_known: pathlib.Path) -> None:
        """The modes are separate graphs; inference has the parameters that training left."""
        model, x = nn.Linear(4, 2), torch.randn(3, 4)
        fast = backend.compiled(model, everything_known)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for _ in range(3):
            networks.assert_same(fast, model, x)
            optimizer.zero_grad()
            fast(x).square().sum().backward()
            optimizer.step()
        assert backend.tuned_operators() == {"linear"}


class TestParameters:
    @pytest.fixture
    def model(self) -> nn.Module:
        model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU())
        model(torch.randn(4, 2, 5, 5))
        return model.eval()

    def test_load_state_dict(self, model: nn.Module, everything_known: pathlib.Path) -> None:
        fast, x = backend.compiled(model, everything_known), torch.randn(1, 2, 5, 5)
        with torch.no_grad():
            before = fast(x)
            model.load_state_dict(
                {
                    name: value + 1 if value.is_floating_point() else value
                    for name, value in model.state_dict().items()
                }
            )
            after = fast(x)
            networks.assert_close(after, model(x))
        assert not torch.allclose(before, after)
        assert backend.tuned_operators() and len(entry.backend_report().graphs) == 1

    def test_data_replaced(self, model: nn.Module, everything_known: pathlib.Path) -> None:
        fast, x = backend.compiled(model, everything_known), torch.randn(1, 2, 5, 5)
        with torch.no_grad():
            fast(x)
            model[0].weight.data = model[0].weight.data * 3
            networks.assert_close(fast(x), model(x))
            model[0].weight = nn.Parameter(model[0].weight * 2)
            networks.assert_close(fast(x), model(x))
        assert backend.tuned_operators()

    def test_too_many_changes(self, model: nn.Module, everything_known: pathlib.Path) -> None:
        fast, x = backend.compiled(model, everything_known), torch.randn(1, 2, 5, 5)
        with torch.no_grad():
            for _ in range(tuned_part.MAX_REFRESHES + 2):
                networks.assert_close(fast(x), model(x))
                model[1].running_mean.add_(0.5)
        (only,) = backend.parts()
        assert not only.is_tuned and only.reason == "its parameters change too often"

    def test_made_in_inference_mode(self, everything_known: pathlib.Path) -> None:
        """Such parameters have no version counters: they are inputs of every call."""
        with torch.inference_mode():
            model, x = nn.Linear(4, 3), torch.randn(2, 4)
            fast = backend.compiled(model, everything_known)
            networks.assert_close(fast(x), model(x))
            model.weight.mul_(2)
            networks.assert_close(fast(x), model(x))
        assert backend.tuned_operators() == {"linear"}


class TestStructure:
    def test_keywords_none_and_nested_outputs(self, everything_known: pathlib.Path) -> None:
        model, x = networks.Perceptron(), torch.randn(4, 16)
        fast = backend.compiled(model, everything_known)
        for skip in (True, False):
            networks.assert_same(fast, model, x, scale=torch.tensor(0.5), skip=skip)
        assert backend.tuned_operators() >= {"linear", "gelu", "mul"}

    def test_branch_by_data(self, everything_known: pathlib.Path) -> None:
        def call(x: torch.Tensor) -> torch.Tensor:
            y = torch.exp(x)
            return y * 2 if y.sum() > 6 else y - 1

        fast = backend.compiled(call, everything_known)
        for x in (torch.zeros(4), torch.ones(4)):
            networks.assert_close(fast(x), call(x))

    def test_numbers_as_arguments(self, everything_known: pathlib.Path) -> None:
        def call(x: torch.Tensor, scale: float, n: int) -> torch.Tensor:
            return torch.relu(x * scale) + n

        fast, x = backend.compiled(call, everything_known), torch.randn(4)
        for scale, n in ((0.5, 2), (0.25, 3), (2.0, 4)):
            networks.assert_close(fast(x, scale, n), call(x, scale, n))


class TestModes:
    def test_inference_mode(self, everything_known: pathlib.Path) -> None:
        model, x = nn.Linear(4, 3), torch.randn(2, 4)
        fast = backend.compiled(model, everything_known)
        with torch.inference_mode():
            networks.assert_close(fast(x), model(x))
            fast(x).add_(1)
            networks.assert_close(fast(x), model(x))
        assert all(each.is_tuned for each in backend.parts())

    @pytest.mark.slow("compiles a network of its own")
    def test_autocast_of_a_network(self, everything_known: pathlib.Path) -> None:
        model, x = networks.Convolutions().eval(), torch.randn(1, 3, 6, 6)
        fast = backend.compiled(model, everything_known)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            outputs, expected = fast(x), model(x)
        assert all(each.dtype == torch.bfloat16 for each in expected)
        torch.testing.assert_close(outputs, expected, rtol=0.05, atol=0.05)
        with torch.no_grad():
            assert fast(x)[0].dtype == torch.float32
        (first, _) = entry.backend_report().graphs
        (only,) = first.sizes[0].parts
        assert only.is_tuned and len(only.groups) < 8  # casts of parameters are done once

    def test_autocast_inside_the_model(self, everything_known: pathlib.Path) -> None:
        linear, x = nn.Linear(4, 3), torch.randn(2, 4)

        def call(x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return linear(x)

        with torch.no_grad():
            out = backend.compiled(call, everything_known)(x)
            torch.testing.assert_close(out, call(x), rtol=0.05, atol=0.05)
        assert backend.tuned_operators() >= {"linear"}

    def test_while_a_cuda_graph_is_recorded(
        self, everything_known: pathlib.Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nothing is built or timed then; what was built before is recorded."""
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        recording = [True]
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: recording[0])
        model, x = nn.Linear(4, 3), torch.randn(2, 4)
        fast = backend.compiled(model, everything_known)
        with torch.no_grad():
            networks.assert_close(fast(x), model(x))
            assert not backend.parts()
            recording[0] = False
            networks.assert_close(fast(x), model(x))
            assert backend.tuned_operators() == {"linear"}
            recording[0] = True
            networks.assert_close(fast(x), model(x))


class TestWhoIsFaster:
    @pytest.mark.parametrize("felix_us", [10.0, 30.0])
    def test_the_faster_runs(
        self, everything_known: pathlib.Path, monkeypatch: pytest.MonkeyPatch, felix_us: float
    ) -> None:
        networks.timed_wholes(monkeypatch, felix_us / 20.0)
        model, x = nn.Linear(4, 3), torch.randn(2, 4)
        fast = backend.compiled(model, everything_known, never_slower=True)
        networks.assert_same(fast, model, x)
        networks.assert_same(fast, model, x)
        (only,) = backend.parts()
        assert (only.felix_us, only.pytorch_us) == (felix_us, 20.0)
        assert only.is_tuned == (felix_us < 20.0)
        reason = "it takes 20.0 us, Felix's network 1.50 times as long (1.50 to 1.50)"
        assert only.is_tuned or only.reason == reason

    @pytest.mark.parametrize("ratio", [0.8, 1.2])
    def test_groups_that_take_longer_here_go_back(
        self, everything_known: pathlib.Path, monkeypatch: pytest.MonkeyPatch, ratio: float
    ) -> None:
        networks.timed_wholes(monkeypatch, 1.5, ratio)
        model, x = nn.Linear(512, 512), torch.randn(256, 512)
        fast = backend.compiled(model, everything_known, never_slower=True)
        networks.assert_same(fast, model, x)
        networks.assert_same(fast, model, x)
        (only,) = backend.parts()
        assert only.is_tuned == (ratio < 1.0) and only.felix_us == ratio * 20.0
        assert [str(each.contender) for each in only.groups] == ["pytorch"]

    def test_wrong_results_do_not_run(
        self, everything_known: pathlib.Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        call = tuned_part.TunedPart.__call__
        monkeypatch.setattr(
            tuned_part.TunedPart, "__call__", lambda self, x: [each + 1 for each in call(self, x)]
        )
        model, x = nn.Linear(4, 3), torch.randn(2, 4)
        networks.assert_same(backend.compiled(model, everything_known), model, x)
        (only,) = backend.parts()
        assert not only.is_tuned and "differs from PyTorch" in only.reason


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"max_size": 3}, "no option 'max_size'; did you mean max_sizes"),
            ({"max_sizes": 0}, "at least 1"),
            ({"max_sizes": True}, "is int"),
            ({"never_slower": 1}, "'never_slower' is bool"),
            ({"known_results": 5}, "is str or a path"),
            ({"target": "toaster"}, "'felix' raised:\nTargetError: unknown target 'toaster'"),
        ],
    )
    def test_wrong_options(
        self, tmp_path: pathlib.Path, options: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=message):
            backend.compiled(torch.relu, tmp_path, **options)(torch.ones(2))

    def test_modes(self) -> None:
        fast = torch.compile(torch.relu, backend=entry.backend, mode="max-autotune")
        with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="no modes"):
            fast(torch.ones(2))

    def test_target_of_another_device(self, everything_known: pathlib.Path) -> None:
        fast = backend.compiled(torch.relu, everything_known, target="cuda -arch=sm_90")
        assert torch.equal(fast(torch.ones(2)), torch.ones(2))
        assert "it works on cpu" in str(entry.backend_report())

    def test_known_results_that_cannot_be_read(self, tmp_path: pathlib.Path) -> None:
        (tmp_path / "known.sqlite").write_text("this is no database of known results " * 9)
        with pytest.raises(felix.errors.RecordError, match="cannot be used"):
            backend.compiled(torch.relu, tmp_path)(torch.ones(2))


def test_report_begins_anew(everything_known: pathlib.Path) -> None:
    assert "no graph" in str(felix.backend_report())
    fast = backend.compiled(torch.relu, everything_known)
    fast(torch.ones(3))
    report = felix.backend_report().to_json()
    assert report["graphs"][0]["sizes"][0]["parts"][0]["runs"] == "felix"
    torch._dynamo.reset()
    assert not felix.backend_report().graphs


def test_a_model_that_goes_takes_its_graphs(everything_known: pathlib.Path) -> None:
    model = nn.Linear(4, 4)
    weight = weakref.ref(model.weight)
    with torch.no_grad():
        backend.compiled(model, everything_known)(torch.randn(2, 4))
    assert backend.tuned_operators() == {"linear"}
    del model
    torch._dynamo.reset()
    gc.collect()
    assert weight() is None
