"""Small ONNX graphs of several nodes, as networks have them."""

from __future__ import annotations

#: Graphs of several nodes, in ONNX's text.
GRAPHS = {
    "perceptron": """<ir_version: 8, opset_import: ["" : 17]>
        g (float[4,8] x, float[8,16] w, float[16] b, float[16,3] v) => (float[4,3] y) {
            a = MatMul(x, w)
            c = Add(a, b)
            d = Relu(c)
            e = Gemm<alpha=0.5>(d, v)
            y = Softmax<axis=-1>(e)
        }""",
    "convolutions": """<ir_version: 8, opset_import: ["" : 17]>
        g (float[2,3,9,9] x, float[6,3,3,3] w, float[6] s, float[6] b, float[6] m, float[6] v)
            => (float[2,6] y) {
            a = Conv<kernel_shape=[3,3], pads=[1,1,1,1], strides=[2,2]>(x, w)
            c = BatchNormalization<epsilon=0.001>(a, s, b, m, v)
            d = LeakyRelu<alpha=0.1>(c)
            e = MaxPool<kernel_shape=[2,2], strides=[2,2]>(d)
            f = GlobalAveragePool(e)
            y = Flatten<axis=1>(f)
        }""",
    "shapes": """<ir_version: 8, opset_import: ["" : 17]>
        g (float[2,3,8] x) => (float[2,4,3,2] y)
            <int64 zero = {0}, int64[1] axis = {0}, int64[2] rest = {-1, 4}, int64[1] two = {2}> {
            s = Shape(x)
            n = Gather<axis=0>(s, zero)
            m = Unsqueeze(n, axis)
            t = Concat<axis=0>(m, rest, two)
            r = Reshape(x, t)
            y = Transpose<perm=[0,2,1,3]>(r)
        }""",
    "attention": """<ir_version: 8, opset_import: ["" : 17]>
        g (float[2,5,8] q, float[2,5,8] k, float[2,5,8] v, float[8] s, float[8] b)
            => (float[2,5,8] y, float[2,5,5] p) <float scale = {2.8284}> {
            t = Transpose<perm=[0,2,1]>(k)
            a = MatMul(q, t)
            c = Div(a, scale)
            p = Softmax<axis=2>(c)
            o = MatMul(p, v)
            r = Add(o, q)
            y = LayerNormalization<axis=-1, epsilon=0.00001>(r, s, b)
        }""",
    "reductions": """<ir_version: 8, opset_import: ["" : 13]>
        g (float[3,4,5] x, int64[3,4] i) => (float[3,1] y, int64[3,5] z, float[3,4,5] w)
            <int64[1] axes = {1}, float low = {0.1}, float high = {0.7}> {
            a = ReduceMean<axes=[2], keepdims=0>(x)
            b = ReduceSum<keepdims=1>(a, axes)
            y = Sqrt(b)
            z = ArgMax<axis=1, keepdims=0>(x)
            c = Cast<to=1>(i)
            d = Unsqueeze(c, axes)
            e = Clip(x, low, high)
            f, g = Split<axis=1>(e)
            w = Concat<axis=1>(g, f)
        }""",
    "quantised": """<ir_version: 8, opset_import: ["" : 17]>
        g (float[4,8] x, int8[8,6] w, float[6] s) => (uint8[4,6] y)
            <float scale = {0.02}, uint8 zero = {128}, float wide = {0.05}> {
            q = QuantizeLinear(x, scale, zero)
            d = DequantizeLinear(q, scale, zero)
            e = DequantizeLinear<axis=1>(w, s)
            m = MatMul(d, e)
            y = QuantizeLinear(m, wide, zero)
        }""",
}
