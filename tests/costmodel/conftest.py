"""What tests of cost models share: one thread, and a made-up data set."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from costmodel.data import felix_bridge
from tests.support import costmodel_fakes


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of the data set, whose features are `FakeFeaturizer`'s for the test."""
    monkeypatch.setattr(felix_bridge, "FelixFeaturizer", costmodel_fakes.FakeFeaturizer)
    costmodel_fakes.write_data(tmp_path / "data")
    return tmp_path / "data"
