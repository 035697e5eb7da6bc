"""Which operators the fixed rules make one program."""

from __future__ import annotations

import torch

from benchmarks.networks import catalogue
from felix import frontend


def test_norms_of_narrow_elements_take_the_casts_around_them():
    model, args = catalogue.make("vit_b32", dtype=torch.bfloat16, small=True)
    lowered = frontend.lowered(frontend.import_torch(model, args))
    names = {variable.name_hint for variable in lowered.get_global_vars()}
    assert "layer_norm" not in names
    assert any(name.startswith("fused_cast_layer_norm_cast") for name in names)
