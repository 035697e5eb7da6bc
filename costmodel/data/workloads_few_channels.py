"""Built-in collection workloads for generated kernels of convolutions with few channels.

First layers (one to six channels), last layers of few results, groups of few channels and
transposed convolutions. Copies of few channels are narrow or packed first, so their times depend
on other terms than those of deep layers. Extents are those of one workload only, and none are
extents of a benchmark's. Lines are of the workload text form, kinds in turns.
"""

from __future__ import annotations

import itertools

_FIRST = (
    "conv2d:2,224,224,3,64,3,padding=1,epilogue=bias+relu,dtype=bfloat16",
    "conv2d:4,224,224,3,32,3,stride=2,padding=1,dtype=bfloat16",
    "conv2d:8,227,227,3,96,11,stride=4,epilogue=bias+relu,dtype=float16",
    "conv2d:2,384,384,3,96,4,stride=4,epilogue=bias,dtype=bfloat16",
    "conv2d:4,224,224,3,768,16,stride=16,epilogue=bias,dtype=bfloat16",
    "conv2d:2,256,256,3,64,7,padding=3,layout=NCHW,epilogue=relu,dtype=bfloat16",
    "conv2d:1,640,640,3,48,6,stride=2,padding=2,dtype=float16",
    "conv2d:4,299,299,3,32,3,stride=2,dtype=int8",
    "conv2d:2,320,448,6,64,7,stride=2,padding=3,dtype=bfloat16",
    "conv2d:1,64,64,4,512,3,padding=1,epilogue=bias,dtype=bfloat16",
    "conv2d:2,128,431,2,48,3,padding=1,dtype=float16",
    "conv2d:1,572,572,1,64,3,epilogue=bias+relu,dtype=bfloat16",
    "conv2d:3,224,224,3,48,3,stride=2,padding=1,dtype=float8_e4m3fn",
)
_OTHER_RANKS = (
    "conv1d:8,16000,1,64,10,stride=5,dtype=bfloat16",
    "conv1d:16,4096,4,64,15,padding=7,epilogue=relu,dtype=float16",
    "conv1d:32,1000,12,96,7,padding=3,dtype=bfloat16",
    "conv3d:2,8,112,112,3,64,3x7x7,stride=1x2x2,padding=1x3x3,dtype=bfloat16",
    "conv3d:1,16,112,112,3,32,3,padding=1,epilogue=bias+relu,dtype=bfloat16",
    "conv3d:1,64,64,64,1,32,3,padding=1,dtype=float16",
    "conv3d:1,48,48,48,4,24,3,stride=2,padding=1,dtype=bfloat16",
)
_LAST = (
    "conv2d:1,256,256,128,3,3,padding=1,epilogue=bias,dtype=bfloat16",
    "conv2d:2,128,128,32,1,3,padding=1,dtype=float16",
    "conv2d:4,65,65,16,21,1,stride=2,dtype=bfloat16",
    "conv2d:2,65,65,12,20,3,padding=4,dilation=4,dtype=bfloat16",
)
_GROUPS = (
    "conv2d:2,56,56,128,128,3,padding=1,groups=32,epilogue=bias+relu,dtype=bfloat16",
    "conv2d:4,56,56,256,256,3,padding=1,stride=2,groups=32,dtype=bfloat16",
    "conv2d:4,14,14,512,512,3,padding=1,groups=32,epilogue=bias+relu,dtype=float16",
    "conv2d:8,7,7,1024,1024,3,padding=1,groups=32,dtype=bfloat16",
    "conv2d:4,28,28,192,192,3,padding=1,groups=8,dtype=bfloat16",
    "conv2d:8,28,28,240,240,1,stride=2,groups=3,dtype=float16",
    "conv2d:2,32,32,64,64,3,padding=1,groups=16,layout=NCHW,dtype=bfloat16",
    "conv2d:4,30,30,96,48,5,padding=2,groups=12,dtype=int8",
    "conv1d:2,499,768,768,128,padding=64,groups=16,epilogue=bias+gelu,dtype=float16",
)
_TRANSPOSED = (
    "conv_transpose2d:2,28,28,1024,512,2,padding=0,epilogue=bias,dtype=bfloat16",
    "conv_transpose2d:2,64,64,256,128,3,output_padding=1,epilogue=bias+relu,dtype=bfloat16",
    "conv_transpose2d:4,64,64,64,3,4,epilogue=bias,dtype=bfloat16",
    "conv_transpose2d:32,1,1,128,1024,4,stride=1,padding=0,layout=NCHW,dtype=float16",
    "conv_transpose2d:1,28,28,21,21,16,stride=8,padding=4,dtype=bfloat16",
    "conv_transpose2d:4,17,19,48,20,5,stride=3,epilogue=bias,dtype=float16",
    "conv_transpose2d:8,32,32,32,1,4,layout=NCHW,dtype=bfloat16",
    "conv_transpose2d:2,128,128,16,16,2,padding=0,dtype=float16",
    "conv_transpose2d:2,16,16,320,96,4,dtype=int8",
    "conv_transpose2d:1,56,56,4,64,4,epilogue=relu,dtype=bfloat16",
)


def lines() -> list[str]:
    """The workloads, kinds in turns."""
    turns = itertools.zip_longest(_FIRST, _GROUPS, _TRANSPOSED, _OTHER_RANKS, _LAST)
    return [line for turn in turns for line in turn if line is not None]
