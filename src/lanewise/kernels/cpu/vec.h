// One vector of f32 (vf) and of i32 (vi) on every instruction set: the only file that names one.
//
// Laws.
//  1. A function here gives the same bits on AVX-512, AVX2, NEON and in the scalar model, except
//     for the payload and sign of a NaN, which no recipe may depend on.
//  2. Partial loads and stores (_n, 0 <= n <= VF_N) touch n elements only; the lanes past n
//     load as 0.
//  3. min and max propagate NaN (either operand) and order -0 below +0.
//  4. Comparisons are ordered: false when an operand is NaN (vf_ne: true).
//  5. f16 and bf16 round to nearest even; overflow goes to infinity; a NaN stays a (quiet) NaN.
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

LW_INLINE float vf_first(vf a) {
  float t[VF_N];
  vf_store(t, a);
  return t[0];
}

#endif  // LW_VEC_H
