// exp, log, tanh and their kin on vf: one polynomial each, the same bits on every instruction set.
//
// Laws.
//  1. Only add, mul, fma, div, sqrt, rint, compares and integer operations: no estimates.
//  2. Within 2 ULP of the true value over the whole range, subnormal results included (measured by
//     tests/kernels/test_math.py; the figures stand in docs/recipes.md).
//  3. NaN gives NaN.  Limits hold at the infinities: exp(-inf) = 0, tanh(inf) = 1, log(0) = -inf,
//     silu(-inf) = gelu(-inf) = -0.  An odd function keeps the sign of a zero.
//
// The coefficients are our own minimax fits, rounded one after another to f32.
#ifndef LW_MATH_H
#define LW_MATH_H

#include "vec.h"

// exp(x + low) as (p + p_low) * 2^n, |low| tiny; x is held within [-170, 170], where all f32
// results lie.  p alone is within 1.1 ULP, the sum within about a quarter.
typedef struct {
  vf p, p_low, n;
} lw_exp_parts;

LW_INLINE vf lw_exp_power(vf x) { return vf_rint(vf_mul(x, vf_set(0x1.715476p+0f))); }  // 1 / ln 2
LW_INLINE vf lw_exp_left(vf x, vf n) {
  vf r = vf_fma(n, vf_set(-0x1.62e430p-1f), x);     // exact
  return vf_fma(n, vf_set(0x1.05c610p-29f), r);     // the rest of ln 2
}
LW_INLINE vf lw_exp_rest(vf r) {  // exp(r) - 1
  vf q = vf_set(0x1.6d75dap-10f);
  q = vf_fma(q, r, vf_set(0x1.123ad8p-7f));
  q = vf_fma(q, r, vf_set(0x1.5554c4p-5f));
  q = vf_fma(q, r, vf_set(0x1.555490p-3f));
  q = vf_fma(q, r, vf_set(0.5f));
  return vf_fma(vf_mul(r, r), q, r);
}

// Of r = x - n ln 2, which may have been given a low part.
LW_INLINE lw_exp_parts lw_exp_parts_of(vf r, vf n) {
  vf s = lw_exp_rest(r), one = vf_set(1.0f);
  lw_exp_parts e;
  e.p = vf_add(one, s);
  e.p_low = vf_sub(s, vf_sub(e.p, one));
  e.n = n;
  return e;
}
LW_INLINE lw_exp_parts lw_exp_split(vf x, vf low) {
  vf top = vf_set(170.0f), bottom = vf_set(-170.0f);
  x = vf_select(vf_gt(x, top), top, x);
  x = vf_select(vf_lt(x, bottom), bottom, x);
  vf n = lw_exp_power(x);
  return lw_exp_parts_of(vf_add(lw_exp_left(x, n), low), n);
}

LW_INLINE vf vf_exp(vf x) {
  lw_exp_parts e = lw_exp_split(x, vf_set(0.0f));
  return vf_scale2(e.p, e.n);
}

// vf_exp for x <= 0 or NaN.  NORMAL: and not below -86, so that no result is subnormal.
template <bool NORMAL> LW_INLINE vf lw_exp_fall(vf x) {
  if (!NORMAL) x = vf_at_least(x, vf_set(-170.0f));
  vf n = lw_exp_power(x), p = vf_add(vf_set(1.0f), lw_exp_rest(lw_exp_left(x, n)));
  return NORMAL ? vf_scale2_normal(p, n) : vf_scale2(p, n);
}

LW_INLINE vf vf_log(vf x) {
  vm tiny = vf_lt(x, vf_set(0x1p-126f));
  vf y = vf_select(tiny, vf_mul(x, vf_set(0x1p25f)), x);
  vi b = vf_as_i(y);
  vi i = vi_sar<23>(vi_sub(b, vi_set(0x3f3504f3)));  // exponent, mantissa from sqrt(1/2) up
  vf f = vf_sub(vi_as_f(vi_sub(b, vi_shl<23>(i))), vf_set(1.0f));
  vf e = vf_add(vi_to_f(i), vf_select(tiny, vf_set(-25.0f), vf_set(0.0f)));
  vf p = vf_set(0x1.148440p-4f);
  p = vf_fma(p, f, vf_set(-0x1.de2948p-4f));
  p = vf_fma(p, f, vf_set(0x1.e6cd20p-4f));
  p = vf_fma(p, f, vf_set(-0x1.fc2434p-4f));
  p = vf_fma(p, f, vf_set(0x1.233aacp-3f));
  p = vf_fma(p, f, vf_set(-0x1.555c54p-3f));
  p = vf_fma(p, f, vf_set(0x1.99a47ep-3f));
  p = vf_fma(p, f, vf_set(-0x1.000006p-2f));
  p = vf_fma(p, f, vf_set(0x1.555548p-2f));
  vf s = vf_mul(f, f);
  vf t = vf_fma(e, vf_set(-0x1.05c610p-29f), vf_mul(vf_mul(p, s), f));
  t = vf_fma(s, vf_set(-0.5f), t);
  vf r = vf_fma(e, vf_set(0x1.62e430p-1f), vf_add(f, t));
  vf inf = vf_set(__builtin_inff());
  r = vf_select(vf_eq(x, inf), inf, r);
  r = vf_select(vf_eq(x, vf_set(0.0f)), vf_neg(inf), r);
  r = vf_select(vf_lt(x, vf_set(0.0f)), vf_set(__builtin_nanf("")), r);
  return vf_select(vf_isnan(x), x, r);
}

// |a| with the sign of b; a is not negative.
LW_INLINE vf lw_with_sign(vf a, vf b) {
  return vi_as_f(vi_or(vf_as_i(a), vi_and(vf_as_i(b), vi_set((int32_t)0x80000000u))));
}

LW_INLINE vf vf_tanh(vf x) {
  vf a = vf_abs(x), z = vf_mul(a, a);
  vf p = vf_set(0x1.1ace3ep-9f);
  p = vf_fma(p, z, vf_set(-0x1.0c895ep-7f));
  p = vf_fma(p, z, vf_set(0x1.63ad18p-6f));
  p = vf_fma(p, z, vf_set(-0x1.b9f220p-5f));
  p = vf_fma(p, z, vf_set(0x1.11107cp-3f));
  p = vf_fma(p, z, vf_set(-0x1.555554p-2f));
  vf small = vf_fma(vf_mul(p, z), a, a);
  vf e = vf_exp(vf_add(a, a));
  vf large = vf_sub(vf_set(1.0f), vf_div(vf_set(2.0f), vf_add(e, vf_set(1.0f))));
  return lw_with_sign(vf_select(vf_lt(a, vf_set(0.625f)), small, large), x);
}

// value / (1 + exp(-u - low)); u < 0: value * exp(u) / (1 + exp(u)).  Numerator and denominator
// carry low parts, the quotient is corrected by its remainder, and the power of two comes last, so
// that subnormal results keep their accuracy.  USUAL: nothing on the way is subnormal, infinite or
// zero, and one product by the power of two does (half the instructions, the same bits).  LOW:
// `low` is not 0.
template <bool USUAL, bool LOW = true>
LW_INLINE vf lw_times_sigmoid_of(vf value, vf u, vf low) {
  vf one = vf_set(1.0f), zero = vf_set(0.0f), down = vf_neg(vf_abs(u));
  vm negative = vf_lt(u, zero);
  vf toward = vf_select(negative, low, vf_neg(low)), n = lw_exp_power(down);
  vf left = lw_exp_left(down, n);  // of the usual
  lw_exp_parts e = USUAL ? lw_exp_parts_of(LOW ? vf_add(left, toward) : left, n)
                         : lw_exp_split(down, toward);
  vf by_n = vi_as_f(vi_shl<23>(vi_add(vf_to_i(e.n), vi_set(127))));
  vf power = USUAL ? vf_mul(e.p, by_n) : vf_scale2(e.p, e.n);
  vf d = vf_add(one, power);
  vf rounded = USUAL ? vf_mul(e.p_low, by_n) : vf_scale2(e.p_low, e.n);
  vf d_low = vf_add(vf_sub(power, vf_sub(d, one)), rounded);
  vf top = vf_mul(value, e.p);
  vf top_low = vf_fma(value, e.p_low, vf_fma(value, e.p, vf_neg(top)));
  top = vf_select(negative, top, value);
  top_low = vf_select(negative, top_low, zero);
  vf by = vf_div(one, d), q = vf_mul(top, by);
  vf rest = vf_add(vf_fma(vf_neg(q), d, top), vf_fma(vf_neg(q), d_low, top_low));
  vf better = vf_fma(rest, by, q);
  if (USUAL) return vf_mul(better, vf_select(negative, by_n, one));
  vm usual = vm_and(vf_lt(vf_abs(q), vf_set(__builtin_inff())), vf_ne(q, zero));
  q = vf_select(usual, better, q);  // infinities and the sign of a zero stay
  return vf_scale2(q, vf_select(negative, e.n, zero));
}
static __attribute__((noinline, unused)) vf lw_times_sigmoid_any(vf value, vf u, vf low) {
  return lw_times_sigmoid_of<false>(value, u, low);
}

// Is 2^-64 <= |u| <= 80 in all lanes?  (As integers, moved so that the range is the lowest.)
LW_INLINE bool lw_all_usual(vf u) {
  vi at = vi_add(vf_as_i(vf_abs(u)), vi_set(0x60800000));
  return !vm_any(vi_gt(at, vi_set((int32_t)0xa3200000u)));
}

LW_INLINE vf vf_sigmoid(vf x) {
  vf one = vf_set(1.0f), zero = vf_set(0.0f);
  if (lw_all_usual(x)) return lw_times_sigmoid_of<true, false>(one, x, zero);
  return lw_times_sigmoid_any(one, x, zero);
}

// Below -170 the result is -0 either way; the hold keeps -inf * 0 away.
LW_INLINE vf vf_silu(vf x) {
  if (lw_all_usual(x)) return lw_times_sigmoid_of<true, false>(x, x, vf_set(0.0f));
  vf held = vf_select(vf_lt(x, vf_set(-170.0f)), vf_set(-170.0f), x);
  return lw_times_sigmoid_any(held, held, vf_set(0.0f));
}

// x * sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3); 2u carries a low part, since exp magnifies
// its rounding by |2u|.
LW_INLINE vf vf_gelu(vf x) {
  vf top = vf_set(20.0f), bottom = vf_set(-20.0f);
  vf a = vf_select(vf_gt(x, top), top, x);
  a = vf_select(vf_lt(a, bottom), bottom, a);
  vf c0 = vf_set(0x1.988454p+0f), c1 = vf_set(0x1.2444f2p-4f);  // high parts; the low parts below
  vf z = vf_mul(a, a), zl = vf_fma(a, a, vf_neg(z));
  vf t = vf_mul(c1, z), tl = vf_fma(c1, z, vf_neg(t));
  tl = vf_fma(c1, zl, vf_fma(vf_set(0x1.49b16ap-29f), z, tl));
  vf s = vf_add(c0, t), back = vf_sub(s, c0);
  vf sl = vf_add(vf_sub(c0, vf_sub(s, back)), vf_sub(t, back));
  sl = vf_add(vf_add(sl, tl), vf_set(-0x1.857936p-25f));
  vf w = vf_mul(a, s), wl = vf_fma(a, sl, vf_fma(a, s, vf_neg(w)));
  vf held = vf_select(vf_lt(x, bottom), bottom, x);
  return lw_all_usual(w) ? lw_times_sigmoid_of<true>(held, w, wl)
                         : lw_times_sigmoid_any(held, w, wl);
}

// exp(y*y/2) * Phi(-y) for y >= 0.68, Phi the normal distribution: a polynomial in q = (y-2)/(y+2)
// times 1/(y+2).  The low part holds what rounding took from 1/(y+2), q and the last sum; for it
// the slope needs three coefficients only.
typedef struct {
  vf high, low;
} lw_pair;

LW_INLINE lw_pair lw_mills(vf y) {
  vf one = vf_set(1.0f), two = vf_set(2.0f), four = vf_set(-4.0f);
  vf d = vf_add(y, two), d_low = vf_sub(y, vf_sub(d, two));
  vf t = vf_div(one, d);
  vf t_low = vf_mul(t, vf_fma(vf_neg(t), d_low, vf_fma(vf_neg(t), d, one)));
  vf q = vf_fma(t, four, one);
  vf q_low = vf_fma(t_low, four, vf_fma(t, four, vf_sub(one, q)));
  vf p = vf_set(0x1.37cc5ap-11f);
  p = vf_fma(p, q, vf_set(0x1.ff4b0cp-11f));
  p = vf_fma(p, q, vf_set(-0x1.e9a574p-10f));
  p = vf_fma(p, q, vf_set(-0x1.bc3d60p-8f));
  p = vf_fma(p, q, vf_set(-0x1.f82bacp-12f));
  p = vf_fma(p, q, vf_set(0x1.2cd580p-5f));
  p = vf_fma(p, q, vf_set(0x1.d7d3d2p-6f));
  p = vf_fma(p, q, vf_set(-0x1.535bb2p-2f));
  vf w = vf_mul(p, q), c0 = vf_set(0x1.5845dcp-1f);
  vf high = vf_add(c0, w);
  vf slope = vf_fma(vf_set(0x1.c34040p-4f), q, vf_set(0x1.d7d3d2p-5f));
  slope = vf_fma(slope, q, vf_set(-0x1.535bb2p-2f));
  vf low = vf_fma(slope, q_low, vf_sub(w, vf_sub(high, c0)));
  lw_pair r;
  r.high = vf_mul(high, t);
  r.low = vf_fma(high, t_low, vf_fma(low, t, vf_fma(high, t, vf_neg(r.high))));
  return r;
}

LW_INLINE vf vf_erf(vf x) {
  vf a = vf_abs(x), z = vf_mul(a, a);
  vf p = vf_set(0x1.4c344ep-14f);
  p = vf_fma(p, z, vf_set(-0x1.a50b0ep-11f));
  p = vf_fma(p, z, vf_set(0x1.542e10p-8f));
  p = vf_fma(p, z, vf_set(-0x1.b7fe90p-6f));
  p = vf_fma(p, z, vf_set(0x1.ce2d50p-4f));
  p = vf_fma(p, z, vf_set(-0x1.812740p-2f));
  p = vf_fma(p, z, vf_set(0x1.06eba8p-3f));
  vf small = vf_fma(p, a, a);
  vf held = vf_select(vf_gt(a, vf_set(5.0f)), vf_set(5.0f), a);
  vf e = vf_exp(vf_neg(vf_mul(held, held)));
  vf tail = lw_mills(vf_mul(held, vf_set(0x1.6a09e6p+0f))).high;
  vf large = vf_fma(vf_mul(e, vf_set(-2.0f)), tail, vf_set(1.0f));
  return lw_with_sign(vf_select(vf_lt(a, vf_set(1.0f)), small, large), x);
}

// x * Phi(x).
LW_INLINE vf vf_gelu_erf(vf x) {
  vf top = vf_set(20.0f);
  vf a = vf_abs(x), y = vf_select(vf_gt(a, top), top, a), z = vf_mul(y, y);
  vf q = vf_set(0x1.02922ap-13f);
  q = vf_fma(q, z, vf_set(-0x1.3b38c8p-10f));
  q = vf_fma(q, z, vf_set(0x1.470026p-7f));
  q = vf_fma(q, z, vf_set(-0x1.1058e4p-4f));
  q = vf_fma(q, z, vf_set(0x1.988454p-2f));
  vf near = vf_mul(x, vf_fma(lw_with_sign(y, x), q, vf_set(0.5f)));
  vf half = vf_set(-0.5f), zl = vf_fma(y, y, vf_neg(z));
  lw_exp_parts e = lw_exp_split(vf_mul(z, half), vf_mul(zl, half));
  lw_pair tail = lw_mills(y);
  vf right = vf_mul(x, vf_fma(vf_neg(vf_scale2(e.p, e.n)), tail.high, vf_set(1.0f)));
  vf b = vf_mul(y, tail.high), b_low = vf_fma(y, tail.low, vf_fma(y, tail.high, vf_neg(b)));
  vf c = vf_mul(b, e.p), c_low = vf_fma(b, e.p_low, vf_fma(b, e.p, vf_neg(c)));
  c = vf_add(c, vf_fma(b_low, e.p, c_low));
  vf left = vf_scale2(vf_neg(c), e.n);
  vf far = vf_select(vf_lt(x, vf_set(0.0f)), left, right);
  return vf_select(vf_lt(a, vf_set(0.6875f)), near, far);
}

// sin and cos for |x| <= 2^18, NaN beyond: n = rint(x * 2/pi), the rest taken off in three parts.
typedef struct {
  vf sin, cos;  // of the rest, |rest| <= pi/4
  vi n;
} lw_turn;

LW_INLINE lw_turn lw_turn_of(vf x) {
  vf n = vf_rint(vf_mul(x, vf_set(0x1.45f306p-1f)));
  vf r = vf_fma(n, vf_set(-0x1.921fb6p+0f), x);
  r = vf_fma(n, vf_set(0x1.777a5cp-25f), r);
  r = vf_fma(n, vf_set(0x1.ee59dap-50f), r);
  vf z = vf_mul(r, r);
  vf s = vf_set(0x1.7b20a6p-19f);
  s = vf_fma(s, z, vf_set(-0x1.a05636p-13f));
  s = vf_fma(s, z, vf_set(0x1.111172p-7f));
  s = vf_fma(s, z, vf_set(-0x1.555556p-3f));
  vf c = vf_set(-0x1.352b4cp-22f);
  c = vf_fma(c, z, vf_set(0x1.a06ed6p-16f));
  c = vf_fma(c, z, vf_set(-0x1.6c175cp-10f));
  c = vf_fma(c, z, vf_set(0x1.555556p-5f));
  lw_turn t;
  t.sin = vf_fma(vf_mul(s, z), r, r);
  t.cos = vf_fma(vf_mul(z, z), c, vf_fma(z, vf_set(-0.5f), vf_set(1.0f)));
  t.n = vf_to_i(vf_select(vf_le(vf_abs(x), vf_set(0x1p18f)), n, vf_zero()));
  return t;
}

// The quadrant q's sine, given x for the domain.
LW_INLINE vf lw_turn_pick(lw_turn t, vi q, vf x) {
  vf y = vf_select(vi_eq(vi_and(q, vi_set(1)), vi_set(0)), t.sin, t.cos);
  y = vi_as_f(vi_xor(vf_as_i(y), vi_shl<30>(vi_and(q, vi_set(2)))));
  return vf_select(vf_le(vf_abs(x), vf_set(0x1p18f)), y, vf_set(__builtin_nanf("")));
}

LW_INLINE vf vf_sin(vf x) {
  lw_turn t = lw_turn_of(x);
  return vf_select(vf_eq(x, vf_zero()), x, lw_turn_pick(t, t.n, x));
}
LW_INLINE vf vf_cos(vf x) {
  lw_turn t = lw_turn_of(x);
  return lw_turn_pick(t, vi_add(t.n, vi_set(1)), x);
}

LW_INLINE vf vf_rsqrt(vf x) { return vf_div(vf_set(1.0f), vf_sqrt(x)); }
LW_INLINE vf vf_square(vf x) { return vf_mul(x, x); }
LW_INLINE vf vf_relu(vf x) { return vf_max(x, vf_set(0.0f)); }
// silu(gate) * value
LW_INLINE vf vf_swiglu(vf gate, vf value) { return vf_mul(vf_silu(gate), value); }

LW_INLINE float lw_expf(float x) { return vf_first(vf_exp(vf_set(x))); }
LW_INLINE float lw_logf(float x) { return vf_first(vf_log(vf_set(x))); }
LW_INLINE float lw_tanhf(float x) { return vf_first(vf_tanh(vf_set(x))); }
LW_INLINE float lw_sigmoidf(float x) { return vf_first(vf_sigmoid(vf_set(x))); }
LW_INLINE float lw_siluf(float x) { return vf_first(vf_silu(vf_set(x))); }
LW_INLINE float lw_geluf(float x) { return vf_first(vf_gelu(vf_set(x))); }
LW_INLINE float lw_gelu_erff(float x) { return vf_first(vf_gelu_erf(vf_set(x))); }
LW_INLINE float lw_erff(float x) { return vf_first(vf_erf(vf_set(x))); }
LW_INLINE float lw_rsqrtf(float x) { return vf_first(vf_rsqrt(vf_set(x))); }

#endif  // LW_MATH_H
