"""What a thread does, as device functions.

copy_async<BYTES>(to, from, valid)      copies `valid` bytes to shared memory, zeros up to BYTES
commit_copies()                         makes the thread's copies since the last call a group
wait_for_copies<PENDING>()              until all but its last `PENDING` groups have arrived
load_vector<N>(to, from)                1, 2 or 4 elements of shared memory
store_vector<N>(to, from)               2 or 4 elements to global memory
multiply_add(sum, x, y)                 sum += x · y, rounded once
"""

from __future__ import annotations

from felix.templates.gemm.ampere import ptx
from felix.templates.gemm.problem import GemmProblem

_ARITHMETIC = """
template <int N> struct Vector;
template <> struct Vector<1> { typedef float type; };
template <> struct Vector<2> { typedef float2 type; };
template <> struct Vector<4> { typedef float4 type; };
template <int N>
__device__ __forceinline__ void load_vector(float* to, const float* from) {
  union { typename Vector<N>::type whole; float elements[N]; } vector;
  vector.whole = *reinterpret_cast<const typename Vector<N>::type*>(from);
  #pragma unroll
  for (int i = 0; i < N; ++i) to[i] = vector.elements[i];
}
template <int N>
__device__ __forceinline__ void store_vector(float* to, const float* from) {
  union { typename Vector<N>::type whole; float elements[N]; } vector;
  #pragma unroll
  for (int i = 0; i < N; ++i) vector.elements[i] = from[i];
  *reinterpret_cast<typename Vector<N>::type*>(to) = vector.whole;
}
__device__ __forceinline__ void multiply_add(float& sum, float x, float y) {
  sum = fmaf(x, y, sum);
}
"""


def functions(problem: GemmProblem) -> str:
    """The device functions for a problem."""
    return ptx.conversions(problem) + ptx.COPIES + _ARITHMETIC
