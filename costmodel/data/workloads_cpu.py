"""The built-in collection workloads for CPUs, as lines of the workload text form.

Layers of real networks (at batch 1, the larger ones reduced in image size or rows so that a
typical random schedule runs in well under 0.1 s on two cores) and odd shapes: primes, 197
tokens, extents of 1; then random awkward ones (`workloads_random`). None is a workload of
`benchmarks/`, so that a model trained on them has not seen those.
"""

from __future__ import annotations

from costmodel.data import workloads_random

#: Random workloads: how many, their seed, and most multiply-adds or elements of one.
_RANDOM_COUNT, _SEED, _MAX_WORK = 240, 11, 4e7
#: One workload a line; `#` starts a comment.
LLVM = """
# gemm: ResNet/MobileNet heads, BERT and ViT projections, attention products, LLaMA slices
gemm:64,1000,512,epilogue=bias
gemm:96,768,768,epilogue=bias
gemm:128,768,192,epilogue=bias+gelu
gemm:197,384,384,epilogue=bias+residual
gemm:50,768,768,transpose_b=true
gemm:256,256,256
gemm:384,384,384
gemm:1,4096,1024,transpose_b=true
gemm:1,1024,4096
gemm:16,1376,512,epilogue=bias
gemm:101,499,211
gemm:1009,64,97,epilogue=relu
gemm:2048,32,32
gemm:32,2048,128,transpose_a=true
gemm:128,128,64,batch=12,transpose_b=true
gemm:128,64,128,batch=12
gemm:197,64,197,batch=3
gemm:31,80,61,batch=7,epilogue=relu
gemm:320,160,512,epilogue=relu
gemm:1,768,3072,epilogue=bias+gelu
gemm:8,2048,512
gemm:150,150,150
gemm:64,3072,256,epilogue=bias
gemm:784,128,128
gemm:256,512,256
gemm:64,64,4096
gemm:49,32,49,batch=24
# conv2d: ResNet-18/50, VGG, Inception, MobileNet pointwise, YOLO stem, grouped, dilated
conv2d:1,56,56,32,32,3,padding=1
conv2d:1,28,28,64,128,3,padding=1,epilogue=bias+relu
conv2d:1,14,14,128,256,3,padding=1
conv2d:1,7,7,512,256,3,padding=1
conv2d:1,56,56,64,128,1,stride=2
conv2d:1,56,56,64,256,1
conv2d:1,28,28,256,128,1,epilogue=bias+relu
conv2d:1,14,14,256,512,1,epilogue=bias+residual+relu
conv2d:1,112,112,3,32,7,stride=2,padding=3
conv2d:1,112,112,16,24,1
conv2d:1,17,17,96,128,1x7,padding=0x3
conv2d:1,35,35,48,32,5,padding=2
conv2d:1,32,32,64,64,3,padding=2,dilation=2,layout=NCHW
conv2d:1,28,28,64,64,3,padding=1,layout=NCHW
conv2d:1,14,14,128,128,3,padding=1,groups=8
conv2d:2,13,13,67,53,3,padding=1,epilogue=relu
conv2d:1,64,64,3,48,4,stride=4
conv2d:1,28,28,128,128,3,stride=2,padding=1,epilogue=bias+relu
conv2d:1,56,56,32,48,3,padding=1,epilogue=bias+relu
conv2d:1,7,7,512,1024,1
conv2d:1,56,56,24,144,1,epilogue=bias+relu
conv2d:1,28,28,96,32,1
conv2d:1,14,14,64,96,5,padding=2
conv2d:1,75,75,24,36,3,padding=1
conv2d:3,14,14,96,96,3,padding=1
conv2d:1,14,14,96,96,3,padding=1,layout=NCHW
# depthwise: MobileNet-v2, EfficientNet
depthwise_conv2d:1,112,112,32,3,padding=1
depthwise_conv2d:1,56,56,144,3,stride=2,padding=1,epilogue=bias+relu
depthwise_conv2d:1,28,28,192,5,padding=2
depthwise_conv2d:1,14,14,576,3,padding=1
depthwise_conv2d:1,56,56,64,3,padding=1,layout=NCHW
depthwise_conv2d:1,28,28,240,3,padding=1,epilogue=bias+relu
depthwise_conv2d:1,56,56,96,7,padding=3
# conv1d, conv3d, transposed convolution: speech, R3D-18, DCGAN
conv1d:1,512,80,128,3,padding=1
conv1d:4,256,64,64,5,stride=2,padding=2,epilogue=bias+relu
conv1d:1,1000,32,48,9,padding=4,layout=NCW
conv1d:1,128,256,256,3,padding=1
conv3d:1,8,28,28,16,16,3,padding=1
conv3d:1,4,14,14,64,32,3,padding=1,epilogue=relu
conv3d:1,8,56,56,3,16,3x7x7,stride=1x2x2,padding=1x3x3
conv3d:1,8,14,14,32,32,3,padding=1
conv_transpose2d:1,8,8,128,64,4
conv_transpose2d:1,16,16,64,32,4,epilogue=relu
conv_transpose2d:1,32,32,64,3,4
conv_transpose2d:1,14,14,96,48,4
# pooling
pool2d:1,112,112,64,3,stride=2,padding=1
pool2d:1,56,56,192,2
pool2d:4,35,35,96,3,kind=avg,stride=1,padding=1
pool2d:1,28,28,256,3,kind=max,stride=1,padding=1
global_pool2d:1,7,7,2048
global_pool2d:8,14,14,512,kind=max,layout=NCHW
global_pool2d:4,20,20,256
# normalisation, softmax, reductions
softmax:12x128x128
softmax:1536x128
softmax:3x197x197
softmax:64x10000
softmax:256x1009
softmax:512x512
softmax:4096x64
softmax:8x50257
layer_norm:128x768
layer_norm:2048x768
layer_norm:197x1024
layer_norm:16x64x64,axes=1+2
layer_norm:512x384
layer_norm:64x3072
rms_norm:128x4096
rms_norm:1000x512
rms_norm:2048x256
rms_norm:16x4096
reduce:64x16384,axes=1
reduce:2048x512,axes=0
reduce:64x56x56x32,axes=1+2,kind=mean
reduce:1000003
reduce:128x1009,axes=1,kind=max
reduce:512x4096,axes=1
reduce:32x100x300,axes=0+2
reduce:16x8192,axes=1,kind=max
# elementwise
elementwise:1024x1024
elementwise:64x56x56x16,ops=mul@3+add@3+relu
elementwise:197x3072,ops=add@1+gelu
elementwise:4096x1009,ops=sub@0+exp+div@0
elementwise:3145728,ops=sigmoid+mul
"""


def builtin() -> list[str]:
    """The built-in workloads, none twice."""
    drawn = workloads_random.lines(_RANDOM_COUNT, _SEED, _MAX_WORK, float16_share=0.0)
    return list(dict.fromkeys([*lines(LLVM), *drawn]))


def lines(text: str) -> list[str]:
    """The workloads of a text: its lines without comments, blanks and repeats."""
    stripped = (line.partition("#")[0].strip() for line in text.splitlines())
    return list(dict.fromkeys(line for line in stripped if line))
