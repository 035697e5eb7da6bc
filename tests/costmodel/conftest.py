"""What tests of cost models share: one thread, and a made-up data set."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from costmodel.data import dataset, felix_bridge
from tests.support import costmodel_fakes


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the data set."""
    folder = tmp_path_factory.mktemp("costmodel") / "data"
    costmodel_fakes.write_data(folder)
    return folder


Measured = Callable[[str], dataset.Dataset]


@pytest.fixture(scope="session")
def measured() -> Measured:
    """The data of the repository by their folder, read once."""
    return functools.cache(lambda name: dataset.read(Path(__file__).parents[2] / "data" / name))


@pytest.fixture
def data(stored: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of the data set, whose features are `FakeFeaturizer`'s for the test."""
    monkeypatch.setattr(felix_bridge, "FelixFeaturizer", costmodel_fakes.FakeFeaturizer)
    return stored
