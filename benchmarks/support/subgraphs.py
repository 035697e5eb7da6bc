"""The subgraphs of the search-efficiency benchmark: no shipped cost model was trained on them."""

from __future__ import annotations

#: Name -> workload text. Common layers, whose extents divide well.
SUBGRAPHS = {
    "gemm": "gemm:1024,1024,1024",
    "gemm-skinny": "gemm:128,3072,768",
    "gemm-batch1": "gemm:1,4096,4096",
    "batched-matmul": "gemm:128,128,64,batch=12",
    "conv2d-3x3": "conv2d:1,56,56,64,64,3,padding=1",
    "conv2d-1x1": "conv2d:1,56,56,64,256,1",
    "conv2d-strided": "conv2d:1,56,56,128,128,3,stride=2,padding=1",
    "depthwise": "depthwise_conv2d:1,56,56,144,3,padding=1",
    "conv3d": "conv3d:1,8,28,28,64,64,3,padding=1",
    "transposed": "conv_transpose2d:1,16,16,256,128,4",
    "softmax": "softmax:1536x128",
    "layer-norm": "layer_norm:8192x768",
    "reduction": "reduce:64x131072,axes=1",
}
#: Prime and odd extents, one and few rows, long sums, few channels, unusual convolutions.
AWKWARD = {
    "gemm-primes": "gemm:197,1021,509",
    "gemm-vit": "gemm:197,3072,768",
    "gemm-llama": "gemm:100,11008,4096",
    "gemm-row": "gemm:1,11008,4096",
    "gemm-5-rows": "gemm:5,4096,4096",
    "attention": "gemm:197,197,64,batch=12",
    "sum-of-a-row": "reduce:1x16777216,axes=1",
    "sum-of-columns": "reduce:3001x517,axes=0",
    "conv2d-to-3": "conv2d:1,56,56,64,3,3,padding=1",
    "conv2d-first": "conv2d:1,224,224,3,64,7,stride=2,padding=3",
    "conv2d-7x7": "conv2d:1,7,7,512,512,3,padding=1",
    "conv2d-35x35": "conv2d:1,35,35,192,96,3,padding=1",
    "conv2d-dilated": "conv2d:1,33,33,128,128,3,padding=2,dilation=2",
    "conv2d-grouped": "conv2d:1,28,28,256,256,3,padding=1,groups=32",
    "transposed-8x8": "conv_transpose2d:1,8,8,512,256,4",
    "transposed-to-3": "conv_transpose2d:1,32,32,64,3,4",
    "softmax-odd": "softmax:1021x509",
    "layer-norm-odd": "layer_norm:509x1021",
    "rms-norm-odd": "rms_norm:333x4093",
}
SETS = {"common": SUBGRAPHS, "awkward": AWKWARD}
EVERY = SUBGRAPHS | AWKWARD
