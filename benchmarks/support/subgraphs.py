"""The subgraphs of the search-efficiency benchmark: no shipped cost model was trained on them."""

from __future__ import annotations

#: Name -> workload text.
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
