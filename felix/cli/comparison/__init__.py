"""How long libraries take for the programs that were tuned: numpy, PyTorch, compiled PyTorch.

`libraries` is the door. Each library is timed in a process of its own (`numpy_child`,
`torch_child`), so that its threads are as many as the target has cores and
its memory is gone afterwards. A call's inputs are cold, as a candidate's are (`measure.calls`). A
call allocates its output, as a user's would.
"""

from __future__ import annotations
