"""The subgraphs of the search-efficiency benchmark: no shipped cost model was trained on them."""

from __future__ import annotations

from collections.abc import Sequence

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
#: Shapes on which no setting of a search was ever chosen, to confirm one.
CONFIRMING = {
    "gemm-64-rows": "gemm:64,4096,1024",
    "gemm-16-rows": "gemm:16,5120,2048",
    "gemm-384": "gemm:512,1536,384",
    "gemm-tall": "gemm:2000,96,480",
    "gemm-1111": "gemm:333,777,1111",
    "attention-77": "gemm:77,77,96,batch=16",
    "conv2d-28x28": "conv2d:1,28,28,160,224,3,padding=1",
    "conv2d-5x5": "conv2d:1,112,112,24,32,5,stride=2,padding=2",
    "conv2d-19x19": "conv2d:1,19,19,384,256,3,padding=1",
    "conv2d-14x14": "conv2d:1,14,14,480,208,1",
    "conv2d-batch": "conv2d:4,40,40,48,96,3,padding=1",
    "conv2d-wide": "conv2d:1,41,41,64,64,3,padding=4,dilation=4",
    "depthwise-5x5": "depthwise_conv2d:1,48,48,240,5,padding=2",
    "conv3d-20x20": "conv3d:1,6,20,20,32,48,3,padding=1",
    "transposed-4x4": "conv_transpose2d:1,4,4,384,192,4",
    "transposed-20x20": "conv_transpose2d:1,20,20,128,64,4",
    "transposed-48x48": "conv_transpose2d:1,48,48,32,16,4",
    "softmax-1500": "softmax:777x1500",
    "layer-norm-640": "layer_norm:1000x640",
    "sum-of-rows": "reduce:300x20000,axes=1",
}


def _layer(rows: int, outputs: int, inputs: int, epilogue: str = "") -> str:
    """A linear layer in bfloat16, its weights stored as PyTorch does."""
    stages = f",epilogue={epilogue}" if epilogue else ""
    return f"gemm:{rows},{outputs},{inputs},transpose_b=true{stages},dtype=bfloat16"


#: Weights of linear layers, outputs and inputs: LLaMA-7B, BERT-base and ViT-B.
_LAYERS = {
    "llama-qkv": (4096, 4096),
    "llama-up": (11008, 4096),
    "llama-down": (4096, 11008),
    "bert-qkv": (768, 768),
    "bert-up": (3072, 768),
    "bert-down": (768, 3072),
}
#: Rows of the input of each: tokens.
_ROWS = {"llama": (1, 16, 100, 512), "bert": (1, 16, 100, 197, 512)}
#: GEMMs in bfloat16: squares, layers, odd and prime extents, batched attention.
TENSOR_GEMMS = {
    **{f"square-{n}": f"gemm:{n},{n},{n},dtype=bfloat16" for n in (512, 1024, 2048, 4096, 8192)},
    **{
        f"{layer}-{rows}": _layer(rows, *extents)
        for layer, extents in _LAYERS.items()
        for rows in _ROWS[layer.partition("-")[0]]
    },
    "primes": "gemm:197,1021,509,dtype=bfloat16",
    "odd": "gemm:1023,1025,1027,dtype=bfloat16",
    "scores-197": "gemm:197,197,64,batch=12,transpose_b=true,dtype=bfloat16",
    "values-197": "gemm:197,64,197,batch=12,dtype=bfloat16",
    "scores-512": "gemm:512,512,128,batch=32,transpose_b=true,dtype=bfloat16",
    "values-512": "gemm:512,128,512,batch=32,dtype=bfloat16",
}
#: Layers with what follows them.
TENSOR_FUSED = {
    f"{layer}-{rows}-gelu": _layer(rows, *_LAYERS[layer], "bias+gelu")
    for layer in ("llama-up", "bert-qkv", "bert-up", "bert-down")
    for rows in (16, 197, 512)
}
#: ResNet-50's distinct convolutions: height, channels in, channels out, kernel, stride.
_RESNET50 = (
    (224, 3, 64, 7, 2), (56, 64, 64, 1, 1), (56, 64, 64, 3, 1), (56, 64, 256, 1, 1),
    (56, 256, 64, 1, 1), (56, 256, 128, 1, 1), (56, 128, 128, 3, 2), (28, 128, 512, 1, 1),
    (56, 256, 512, 1, 2), (28, 512, 128, 1, 1), (28, 128, 128, 3, 1), (28, 512, 256, 1, 1),
    (28, 256, 256, 3, 2), (14, 256, 1024, 1, 1), (28, 512, 1024, 1, 2), (14, 1024, 256, 1, 1),
    (14, 256, 256, 3, 1), (14, 1024, 512, 1, 1), (14, 512, 512, 3, 2), (7, 512, 2048, 1, 1),
    (14, 1024, 2048, 1, 2), (7, 2048, 512, 1, 1), (7, 512, 512, 3, 1),
)  # fmt: skip
#: R3D-18's: frames, height, channels in, channels out, kernel, stride; its first one follows.
_R3D18 = (
    (16, 56, 64, 64, 3, 1),
    (16, 56, 64, 128, 3, 2),
    (16, 56, 64, 128, 1, 2),
    (8, 28, 128, 128, 3, 1),
    (8, 28, 128, 256, 3, 2),
    (8, 28, 128, 256, 1, 2),
    (4, 14, 256, 256, 3, 1),
    (4, 14, 256, 512, 3, 2),
    (4, 14, 256, 512, 1, 2),
    (2, 7, 512, 512, 3, 1),
)


def _convolution(extents: Sequence[int], kernel: int, stride: int) -> str:
    """A convolution with channels last in bfloat16: batch, then as in `_RESNET50` and `_R3D18`."""
    step = f",stride={stride}" if stride > 1 else ""
    pad = f",padding={kernel // 2}" if kernel > 1 else ""
    sizes = ",".join(map(str, (*extents, kernel)))
    return f"conv{len(extents) - 3}d:{sizes}{step}{pad},dtype=bfloat16"


#: Convolutions in bfloat16 with channels last: ResNet-50's at batch 1 and 16, R3D-18's.
TENSOR_RESNET50 = {
    f"resnet50-{size}-{ci}-{co}-k{kernel}s{stride}-b{batch}": _convolution(
        (batch, size, size, ci, co), kernel, stride
    )
    for batch in (1, 16)
    for size, ci, co, kernel, stride in _RESNET50
}
TENSOR_R3D18 = {
    "r3d18-first": "conv3d:1,16,112,112,3,64,3x7x7,stride=1x2x2,padding=1x3x3,dtype=bfloat16",
    **{
        f"r3d18-{frames}x{size}-{ci}-{co}-k{kernel}s{stride}": _convolution(
            (1, frames, size, size, ci, co), kernel, stride
        )
        for frames, size, ci, co, kernel, stride in _R3D18
    },
}
SETS = {
    "common": SUBGRAPHS,
    "awkward": AWKWARD,
    "confirming": CONFIRMING,
    "tensor-gemms": TENSOR_GEMMS,
    "tensor-fused": TENSOR_FUSED,
    "tensor-resnet50": TENSOR_RESNET50,
    "tensor-r3d18": TENSOR_R3D18,
}
EVERY = {name: text for members in SETS.values() for name, text in members.items()}
