// The scalar model of vec.h: one lane, plain C++; the definition that the other sets are tested by.
#ifndef LW_VEC_SCALAR_H
#define LW_VEC_SCALAR_H

#include "vec_half.h"

typedef float vf;
typedef int32_t vi;
typedef bool vm;
constexpr int VF_N = 1;
constexpr bool VF_SCALES = false;  // vf_scale2 is one instruction

LW_INLINE vf vf_set(float a) { return a; }
LW_INLINE vf vf_load(const float* p) { return *p; }
LW_INLINE vf vf_load_n(const float* p, int64_t n) { return n > 0 ? *p : 0.0f; }
LW_INLINE void vf_store(float* p, vf a) { *p = a; }
LW_INLINE void vf_store_n(float* p, vf a, int64_t n) {
  if (n > 0) *p = a;
}
LW_INLINE vf vf_add(vf a, vf b) { return a + b; }
LW_INLINE vf vf_sub(vf a, vf b) { return a - b; }
LW_INLINE vf vf_mul(vf a, vf b) { return a * b; }
LW_INLINE vf vf_div(vf a, vf b) { return a / b; }
LW_INLINE vf vf_fma(vf a, vf b, vf c) { return lw_fmaf(a, b, c); }
LW_INLINE vf vf_neg(vf a) { return lw_f32_of_bits(lw_bits_f32(a) ^ 0x80000000u); }
LW_INLINE vf vf_abs(vf a) { return lw_f32_of_bits(lw_bits_f32(a) & 0x7fffffffu); }
LW_INLINE vf vf_sqrt(vf a) { return __builtin_sqrtf(a); }
LW_INLINE vf vf_min(vf a, vf b) {
  if (a != a || b != b) return a + b;
  return a < b ? a : b < a ? b : lw_f32_of_bits(lw_bits_f32(a) | lw_bits_f32(b));
}
LW_INLINE vf vf_max(vf a, vf b) {
  if (a != a || b != b) return a + b;
  return a > b ? a : b > a ? b : lw_f32_of_bits(lw_bits_f32(a) & lw_bits_f32(b));
}
LW_INLINE vf vf_at_least(vf a, vf low) { return a < low ? low : a; }
// Integers from 2^23 up are themselves; the sign survives (so -0.3 rounds to -0).
LW_INLINE vf lw_keep_sign(vf magnitude, vf of) {
  return lw_f32_of_bits(lw_bits_f32(magnitude) | (lw_bits_f32(of) & 0x80000000u));
}
LW_INLINE vf vf_trunc(vf a) {
  vf m = vf_abs(a);
  return m < 0x1p23f ? lw_keep_sign((float)(int32_t)m, a) : a;
}
LW_INLINE vf vf_rint(vf a) {
  vf m = vf_abs(a);
  if (!(m < 0x1p23f)) return a;
  vf t = (float)(int32_t)m, r = m - t;
  bool up = r > 0.5f || (r == 0.5f && ((int32_t)m & 1));
  return lw_keep_sign(up ? t + 1.0f : t, a);
}
LW_INLINE vf vf_floor(vf a) {
  vf t = vf_trunc(a);
  return t > a ? t - 1.0f : t;
}

LW_INLINE vm vf_eq(vf a, vf b) { return a == b; }
LW_INLINE vm vf_ne(vf a, vf b) { return a != b; }
LW_INLINE vm vf_lt(vf a, vf b) { return a < b; }
LW_INLINE vm vf_le(vf a, vf b) { return a <= b; }
LW_INLINE vm vf_gt(vf a, vf b) { return a > b; }
LW_INLINE vm vf_ge(vf a, vf b) { return a >= b; }
LW_INLINE vm vf_isnan(vf a) { return a != a; }
LW_INLINE vf vf_select(vm m, vf a, vf b) { return m ? a : b; }
LW_INLINE vm vm_and(vm a, vm b) { return a && b; }
LW_INLINE vm vm_or(vm a, vm b) { return a || b; }
LW_INLINE vm vm_not(vm a) { return !a; }
LW_INLINE uint32_t vm_bits(vm a) { return a; }
LW_INLINE bool vm_any(vm a) { return a; }
LW_INLINE vm vm_first(int64_t n) { return n > 0; }

LW_INLINE vi vi_set(int32_t a) { return a; }
LW_INLINE vi vi_iota(void) { return 0; }
LW_INLINE vi vi_load(const int32_t* p) { return *p; }
LW_INLINE void vi_store(int32_t* p, vi a) { *p = a; }
LW_INLINE vi vi_add(vi a, vi b) { return (vi)((uint32_t)a + (uint32_t)b); }
LW_INLINE vi vi_sub(vi a, vi b) { return (vi)((uint32_t)a - (uint32_t)b); }
LW_INLINE vi vi_mul(vi a, vi b) { return (vi)((uint32_t)a * (uint32_t)b); }
LW_INLINE vi vi_and(vi a, vi b) { return a & b; }
LW_INLINE vi vi_or(vi a, vi b) { return a | b; }
LW_INLINE vi vi_xor(vi a, vi b) { return a ^ b; }
template <int S> LW_INLINE vi vi_shl(vi a) { return (vi)((uint32_t)a << S); }
template <int S> LW_INLINE vi vi_shr(vi a) { return (vi)((uint32_t)a >> S); }
template <int S> LW_INLINE vi vi_sar(vi a) { return a >> S; }
LW_INLINE vm vi_eq(vi a, vi b) { return a == b; }
LW_INLINE vm vi_gt(vi a, vi b) { return a > b; }
LW_INLINE vi vi_select(vm m, vi a, vi b) { return m ? a : b; }
LW_INLINE vi vi_min(vi a, vi b) { return a < b ? a : b; }
LW_INLINE vi vi_max(vi a, vi b) { return a > b ? a : b; }
LW_INLINE vf vi_to_f(vi a) { return (float)a; }
// For |a| < 2^31; anything else gives the least i32 here (and differs between the sets).
LW_INLINE vi vf_to_i_trunc(vf a) {
  return a > -0x1p31f && a < 0x1p31f ? (int32_t)a : (-0x7fffffff - 1);
}
LW_INLINE vi vf_to_i(vf a) { return vf_to_i_trunc(vf_rint(a)); }
LW_INLINE vi vf_as_i(vf a) { return (vi)lw_bits_f32(a); }
LW_INLINE vf vi_as_f(vi a) { return lw_f32_of_bits((uint32_t)a); }
// p * 2^n for a whole n in [-252, 254], one rounding (a NaN stays one): two exact-enough steps.
LW_INLINE vf vf_scale2(vf p, vf n) {
  vi i = vf_to_i(n), half = vi_sar<1>(i), bias = vi_set(127);
  vf low = vi_as_f(vi_shl<23>(vi_add(half, bias)));
  vf high = vi_as_f(vi_shl<23>(vi_add(vi_sub(i, half), bias)));
  return vf_mul(vf_mul(p, low), high);
}
LW_INLINE vf vf_scale2_normal(vf p, vf n) {
  return vi_as_f(vi_add(vf_as_i(p), vi_shl<23>(vf_to_i(n))));
}

LW_INLINE vf vf_load_f16(const uint16_t* p) { return lw_f16_to_f32(*p); }
LW_INLINE vf vf_load_f16_n(const uint16_t* p, int64_t n) {
  return n > 0 ? lw_f16_to_f32(*p) : 0.0f;
}
LW_INLINE void vf_store_f16(uint16_t* p, vf a) { *p = lw_f32_to_f16(a); }
LW_INLINE void vf_store_f16_n(uint16_t* p, vf a, int64_t n) {
  if (n > 0) *p = lw_f32_to_f16(a);
}
LW_INLINE vi vi_load_i8(const int8_t* p) { return *p; }
LW_INLINE vi vi_load_u16(const uint16_t* p) { return *p; }
LW_INLINE vi vi_load_u16_n(const uint16_t* p, int64_t n) { return n > 0 ? *p : 0; }
LW_INLINE void vi_store_u16(uint16_t* p, vi a) { *p = (uint16_t)a; }
LW_INLINE void vi_store_u16_n(uint16_t* p, vi a, int64_t n) {
  if (n > 0) *p = (uint16_t)a;
}
// The halving tree over the lanes, l[i] + l[i + VF_N/2] and so on: the end of the Sums recipe.
LW_INLINE float vf_hadd(vf a) { return a; }
LW_INLINE float vf_hmax(vf a) { return a; }
LW_INLINE float vf_htop(vf a) { return a; }

#endif  // LW_VEC_SCALAR_H
