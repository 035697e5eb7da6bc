"""How long PyTorch takes for the programs that were tuned, eager and compiled.

`libraries` is the door. PyTorch is timed in a process of its own (`torch_child`), so that its
threads are as many as the target has cores and its memory is gone afterwards. A call's inputs are
cold, as a candidate's are (`runner.calls`). A call allocates its output, as a user's would.
"""

from __future__ import annotations
