// One vector of f32 (vf) and of i32 (vi) on every instruction set: the only file that names one.
//
// Laws.
//  1. A function here gives the same bits on AVX-512, AVX2, NEON and in the scalar model, except
//     for the payload and sign of a NaN, which no recipe may depend on.
//  2. Partial loads and stores (_n, 0 <= n <= VF_N) touch n elements only; the lanes past n
//     load as 0.
//  3. min and max propagate NaN (either operand) and order -0 below +0.
//  4. Comparisons are ordered: false when an operand is NaN (vf_ne: true).
//  5. f16, bf16 and f8 round to nearest even; overflow goes to infinity, in f8_e4m3, which has
//     none, to NaN; a NaN stays a (quiet) NaN.
//  6. vf_at_least(a, low) is low where a < low, else a: a NaN in a stays.  Which zero it gives for
//     two, and what for a NaN in low, is open; so it is for vf_htop, its fold over the lanes.  For
//     sums whose bits do not depend on either.  vf_scale2_normal is vf_scale2 for whole n where
//     p and the result are normal numbers, or p is NaN.
//  7. Needs the default float mode (round to nearest, no flush to zero): lw_fp_enter in
//     runtime.cpp.
//
// The instruction set is what the compiler was asked for; -DLW_SCALAR asks for the scalar model
// (VF_N = 1), which runs on any CPU, with an exact software fma where the hardware has none.
#ifndef LW_VEC_H
#define LW_VEC_H

#include <stddef.h>
#include <stdint.h>

#ifndef LW_INLINE
#define LW_INLINE static inline __attribute__((always_inline, unused))
#endif

#include "vec_half.h"

#if defined(LW_SCALAR)
#include "vec_scalar.h"
#elif defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && \
    defined(__AVX512VL__)
#include "vec_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "vec_avx2.h"
#elif defined(__aarch64__) && defined(__ARM_NEON)
#include "vec_neon.h"
#else
#include "vec_scalar.h"
#endif

// What follows is written once, over the names above.

LW_INLINE vf vf_zero(void) { return vf_set(0.0f); }

// bf16 is the upper half of an f32; the conversions below are integer arithmetic on every set.
LW_INLINE vf vf_load_bf16(const uint16_t* p) { return vi_as_f(vi_shl<16>(vi_load_u16(p))); }
LW_INLINE vf vf_load_bf16_n(const uint16_t* p, int64_t n) {
  return vi_as_f(vi_shl<16>(vi_load_u16_n(p, n)));
}
// The 16 bits of each lane's bf16, as an i32.
LW_INLINE vi vf_to_bf16(vf a) {
  vi b = vf_as_i(a);
  vi odd = vi_and(vi_shr<16>(b), vi_set(1));
  vi rounded = vi_shr<16>(vi_add(b, vi_add(odd, vi_set(0x7fff))));
  vi quiet = vi_or(vi_shr<16>(b), vi_set(0x40));
  return vi_select(vf_isnan(a), quiet, rounded);
}
LW_INLINE void vf_store_bf16(uint16_t* p, vf a) { vi_store_u16(p, vf_to_bf16(a)); }
LW_INLINE void vf_store_bf16_n(uint16_t* p, vf a, int64_t n) {
  vi_store_u16_n(p, vf_to_bf16(a), n);
}

// Bytes as i32 lanes, their signs spread; and the low byte of each lane.
LW_INLINE vi vi_load_i8_n(const int8_t* p, int64_t n) {
  int8_t t[VF_N];
  for (int i = 0; i < VF_N; ++i) t[i] = i < n ? p[i] : (int8_t)0;
  return vi_load_i8(t);
}
LW_INLINE void vi_store_i8_n(int8_t* p, vi a, int64_t n) {
  int32_t wide[VF_N];
  int8_t t[VF_N];
  vi_store(wide, a);
  for (int i = 0; i < VF_N; ++i) t[i] = (int8_t)wide[i];
  __asm__ volatile("" : "+m"(t));  // no masked down-converting store: see vi_store_u16_n of AVX-512
  for (int i = 0; i < VF_N; ++i)
    if (i < n) p[i] = t[i];
}

// The 8-bit floats, as vec_half.h defines them.
template <class F> LW_INLINE vf lw_widen_f8(vi h) {
  const vi m = vi_and(h, vi_set(0x7f));
  const vi normal = vi_add(vi_shl<F::SHIFT>(m), vi_set((int32_t)F::REBIAS));
  const vf small = vf_mul(vi_to_f(m), vi_as_f(vi_set((int32_t)F::LEAST)));
  vi bits = vi_select(vi_gt(vi_set(1 << F::M), m), vf_as_i(small), normal);
  if constexpr (F::INF == 0x7c)
    bits = vi_select(vi_eq(m, vi_set(0x7c)), vi_set(0x7f800000), bits);
  bits = vi_select(vi_gt(m, vi_set(F::INF == 0x7c ? 0x7c : 0x7e)), vi_set(0x7fc00000), bits);
  return vi_as_f(vi_or(bits, vi_shl<31>(vi_shr<7>(h))));
}
template <class F> LW_INLINE vi lw_narrow_f8(vf x) {
  const vi b = vf_as_i(x), a = vi_and(b, vi_set(0x7fffffff));
  const vi odd = vi_and(vi_shr<F::SHIFT>(a), vi_set(1));
  const vi up = vi_add(odd, vi_set((1 << (F::SHIFT - 1)) - 1 - (int32_t)F::REBIAS));
  const vi normal = vi_min(vi_shr<F::SHIFT>(vi_add(a, up)), vi_set((int32_t)F::INF));
  const vi magic = vi_set((int32_t)F::MAGIC);
  const vi small = vi_sub(vf_as_i(vf_add(vi_as_f(a), vi_as_f(magic))), magic);
  vi code = vi_select(vi_gt(vi_set((int32_t)F::NORMAL), a), small, normal);
  code = vi_select(vf_isnan(x), vi_set((int32_t)F::NOT_A_NUMBER), code);
  return vi_or(code, vi_and(vi_shr<24>(b), vi_set(0x80)));
}
#define LW_F8(NAME, F)                                                                          \
  LW_INLINE vf vf_load_##NAME(const uint8_t* p) {                                               \
    return lw_widen_f8<F>(vi_load_i8((const int8_t*)p));                                        \
  }                                                                                             \
  LW_INLINE vf vf_load_##NAME##_n(const uint8_t* p, int64_t n) {                                \
    return lw_widen_f8<F>(vi_load_i8_n((const int8_t*)p, n));                                   \
  }                                                                                             \
  LW_INLINE void vf_store_##NAME##_n(uint8_t* p, vf a, int64_t n) {                             \
    vi_store_i8_n((int8_t*)p, lw_narrow_f8<F>(a), n);                                           \
  }                                                                                             \
  LW_INLINE void vf_store_##NAME(uint8_t* p, vf a) { vf_store_##NAME##_n(p, a, VF_N); }         \
  LW_INLINE vf lw_as_##NAME(vf a) { return lw_widen_f8<F>(lw_narrow_f8<F>(a)); }
LW_F8(f8_e4m3, lw_e4m3)
LW_F8(f8_e5m2, lw_e5m2)
#undef LW_F8

LW_INLINE float vf_first(vf a) {
  float t[VF_N];
  vf_store(t, a);
  return t[0];
}

#endif  // LW_VEC_H
