"""Functions of floats by polynomials, so that a CPU computes a vector of them at a time.

LLVM has no vector code for them: it calls the C library's function for each element, which is most
of the time of a softmax or a GELU. Before a program is compiled for a CPU, each call is written
out, in float32; some are in float64, too. Errors, in units of the last place (ulp) over all
floats, are beside each function. NaN stays NaN, and infinities give what their limits are.
Coefficients are fits of the least relative error on the interval that is left after the reduction
of the argument.

In: a call of a function in a program.
Out: an expression of its value.
From: `preparation`.
"""

from __future__ import annotations
