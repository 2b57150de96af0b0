"""Products of tiles on tensor cores, in the accuracy of each precision class.

Tensor cores multiply halves, so a float32 operand becomes a sum of fp16 or bf16 parts that are multiplied apart:

    fp16x3: two fp16 parts, each line scaled by a power of two: 24 bits in three products
    bf16x6: three bf16 parts: 24 bits in six products, and nothing to scale
    bf16x3: two bf16 parts: 16 bits in three products
"""

import triton
import triton.language as tl


@triton.jit
def split(a, AXIS: tl.constexpr, DTYPE: tl.constexpr, PARTS: tl.constexpr):
    """`(a1, a2, a3, unscale)` with `a = (a1 + a2 + a3) unscale`, in `DTYPE`; parts beyond `PARTS` are not to be used.

    In fp16 each line along `AXIS` is first scaled by the power of two that takes its largest entry to 2^14 .. 2^15:
    two parts then hold 24 bits, as float32 does, and nothing overflows or gets lost in subnormals.
    """
    unscale = tl.full((1, 1), 1.0, tl.float32)
    if tl.float16 == DTYPE:
        a = a.to(tl.float32)
        largest = tl.max(tl.abs(a), AXIS, keep_dims=True)
        exponent = tl.maximum(largest.to(tl.int32, bitcast=True) >> 23, 15)
        a = a * ((268 - exponent) << 23).to(tl.float32, bitcast=True)
        unscale = ((exponent - 14) << 23).to(tl.float32, bitcast=True)
    a1 = a.to(DTYPE)
    a2 = a1
    a3 = a1
    if PARTS > 1:
        if tl.bfloat16 == DTYPE:
            a = a.to(tl.float32)
            near = _near_bf16(a)
            a1 = near.to(DTYPE)
            a = a - near
        else:
            a = a - a1.to(tl.float32)
        a2 = a.to(DTYPE)
    if PARTS > 2:
        near = _near_bf16(a)
        a2 = near.to(DTYPE)
        a3 = (a - near).to(DTYPE)
    return a1, a2, a3, unscale


@triton.jit
def _near_bf16(a):
    """Rounded to bf16 in integers: a cast and its inverse would run at a sixteenth of the speed."""
    return ((a.to(tl.int32, bitcast=True) + 0x8000) & -65536).to(tl.float32, bitcast=True)


@triton.jit
def add_product(a, b, acc, PARTS: tl.constexpr):
    """`acc + a^T b` of two split tiles that share their rows, without the negligible products of small parts."""
    # All parts at once: transposed one by one they would reach shared memory one by one, with a barrier for each.
    a_t = (tl.trans(a[0]), tl.trans(a[1]), tl.trans(a[2]))
    if a[0].dtype == tl.float16:  # each tile by itself: it has its own scale, and tensor cores truncate when they add
        t = _add_parts(a_t, b, tl.zeros_like(acc), PARTS)
        return acc + t * tl.trans(a[3]) * b[3]
    elif PARTS > 2:
        return acc + _add_parts(a_t, b, tl.zeros_like(acc), PARTS)
    else:
        return _add_parts(a_t, b, acc, PARTS)


@triton.jit
def _add_parts(a, b, acc, PARTS: tl.constexpr):
    """Small products first."""
    if PARTS > 2:
        acc = tl.dot(a[2], b[0], acc)
        acc = tl.dot(a[0], b[2], acc)
        acc = tl.dot(a[1], b[1], acc)
    if PARTS > 1:
        acc = tl.dot(a[1], b[0], acc)
        acc = tl.dot(a[0], b[1], acc)
    return tl.dot(a[0], b[0], acc, input_precision="ieee")


@triton.jit
def product(a, b, PARTS: tl.constexpr):
    """`a b` of two split tiles. The products do not all wait for one another."""
    zero = tl.zeros((a[0].shape[0], b[0].shape[1]), tl.float32)
    acc = tl.dot(a[0], b[0], zero, input_precision="ieee")
    if PARTS > 2:
        small = tl.dot(a[0], b[2], tl.dot(a[2], b[0], tl.dot(a[1], b[1], zero)))
        acc = tl.dot(a[1], b[0], tl.dot(a[0], b[1], small)) + acc
    elif PARTS > 1:
        acc = (tl.dot(a[1], b[0], zero) + tl.dot(a[0], b[1], zero)) + acc
    if a[0].dtype == tl.float16:
        acc = acc * a[3] * b[3]
    return acc
