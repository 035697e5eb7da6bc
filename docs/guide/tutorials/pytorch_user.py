"""Felix for a PyTorch user: tasks of a module, tuning them, calling a kernel.

    python docs/guide/tutorials/pytorch_user.py

Writes to the folder `tutorial-pytorch` of the working directory.
"""

from __future__ import annotations

import json

import numpy as np
import torch
import tvm

import felix

OUT = "tutorial-pytorch"

# 1. A module and example inputs. Shapes become the shapes of the examples.


class Classifier(torch.nn.Module):
    """One hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = torch.nn.Linear(96, 64)
        self.output = torch.nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.output(torch.relu(self.hidden(x)))


model = Classifier().eval()
example = torch.randn(16, 96)

# 2. Its tasks: TVM imports and fuses the module; each distinct fused program is one task, weighted
#    by how often the module calls it.

tasks = felix.extract_tasks(model, (example,), "llvm")
for task in tasks:
    print(f"{task.name}: {task.flops:,} FLOP, weight {task.weight:g}")

# 3. Tuning them together. Rounds go to the task that promises the largest gain.

network = felix.tune(tasks, trials=2 * len(tasks), seed=0)
for result in network.results:
    print(
        f"{result.task.name}: {result.best.latency_us:.1f} us after {result.curve[-1][0]} trials"
    )
print(f"sum of weight x latency: {network.latency_us:.1f} us")

# 4. One artifact folder for each task. `python FOLDER/run.py` checks and times it.

folders = sorted(network.export(OUT).iterdir())
print(*folders, sep="\n")

# 5. Calling the kernel of the hidden layer. A kernel takes the task's tensors in the order of the
#    manifest, outputs included.

hidden = max(network.results, key=lambda result: result.task.flops)
folder = folders[network.results.index(hidden)]  # in the order of the tasks
arguments = json.loads((folder / "manifest.json").read_text())["arguments"]
for argument in arguments:
    print(argument["name"], argument["shape"], "output" if argument["is_output"] else "input")

kernel = felix.compile(hidden)
tensors = [
    tvm.runtime.tensor(np.random.rand(*argument["shape"]).astype(argument["dtype"]))
    for argument in arguments
]
kernel["main"](*tensors)
x, weight, bias, output = (torch.from_numpy(tensor.numpy()) for tensor in tensors)
torch.testing.assert_close(output, torch.relu(torch.nn.functional.linear(x, weight, bias)))
