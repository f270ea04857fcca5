// Sixteen lanes: the sixteen output rows of a panel, or 64 packed bytes (16 rows x 4 of K).
// Laws:
//  - one vocabulary for every instruction set, by the compiler's vector types: one zmm, two ymm,
//    four NEON registers or plain words hold the same sixteen lanes, so bits cannot differ;
//  - lw_fma rounds once everywhere; LW_SCALAR (any CPU, no FMA unit asked for) computes it exactly
//    by a double rounded to odd (53 >= 24 + 2 bits, so the second rounding is innocent);
//  - narrow floats widen exactly, subnormals included.
#pragma once
#include "mem.h"

#pragma clang diagnostic ignored "-Wpsabi"  // 64-byte vectors as arguments: all calls are inlined

#if !defined(LW_SCALAR) && defined(__AVX512VNNI__) && defined(__AVX512BW__)
#define LW_AVX512 1
#include <immintrin.h>
#elif !defined(LW_SCALAR) && defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define LW_AVX2 1
#include <immintrin.h>
#elif !defined(LW_SCALAR) && defined(__aarch64__)
#define LW_NEON 1
#include <arm_neon.h>
#if defined(__ARM_FEATURE_DOTPROD)
#define LW_DOTPROD 1
#if defined(__ARM_FEATURE_MATMUL_INT8)
#define LW_I8MM 1
#endif
#endif
#endif

typedef float lw_f32 __attribute__((vector_size(64)));
typedef int32_t lw_i32 __attribute__((vector_size(64)));
typedef uint32_t lw_u32 __attribute__((vector_size(64)));
typedef double lw_f64 __attribute__((vector_size(128)));
typedef uint16_t lw_u16 __attribute__((vector_size(32)));
typedef int16_t lw_i16 __attribute__((vector_size(32)));
typedef int8_t lw_i8 __attribute__((vector_size(16)));
typedef uint8_t lw_u8 __attribute__((vector_size(16)));

#if defined(LW_AVX2)
// The two registers of such a vector.
struct LwPair {
  __m256i a, b;
};
LW_INLINE LwPair lw_halves(lw_u32 v) {
  return {(__m256i)__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7),
          (__m256i)__builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15)};
}
LW_INLINE lw_i32 lw_whole(LwPair p) {
  typedef int32_t half __attribute__((vector_size(32)));
  return __builtin_shufflevector((half)p.a, (half)p.b, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13,
                                 14, 15);
}
#endif

// The same, at any address.
typedef float lw_f32_at __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint32_t lw_u32_at __attribute__((vector_size(64), aligned(1), may_alias));
typedef int32_t lw_i32_at __attribute__((vector_size(64), aligned(1), may_alias));
typedef double lw_f64_at __attribute__((vector_size(128), aligned(8), may_alias));
typedef uint16_t lw_u16_at __attribute__((vector_size(32), aligned(1), may_alias));
typedef int16_t lw_i16_at __attribute__((vector_size(32), aligned(1), may_alias));
typedef int8_t lw_i8_at __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint8_t lw_u8_at __attribute__((vector_size(16), aligned(1), may_alias));

#if defined(LW_NEON)
// A register of such a vector.
typedef uint32x4_t lw_quarter __attribute__((may_alias));
typedef uint8x16_t lw_quarter_bytes __attribute__((may_alias));
#endif

LW_INLINE lw_f32 lw_load(const void* p) { return *(const lw_f32_at*)p; }
LW_INLINE void lw_store(void* p, lw_f32 v) { *(lw_f32_at*)p = v; }
LW_INLINE lw_u32 lw_load_bytes(const void* p) { return *(const lw_u32_at*)p; }
// Not 0 + x, which is another value for -0.
LW_INLINE lw_f32 lw_all(float x) {
  return lw_f32{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
}
LW_INLINE lw_i32 lw_alli(int32_t x) { return (lw_i32){} + x; }
LW_INLINE lw_f32 lw_float(lw_i32 v) { return __builtin_convertvector(v, lw_f32); }

// Stores the first n lanes.
LW_INLINE void lw_store_n(float* p, lw_f32 v, int32_t n) {
  if (n >= 16) {
    lw_store(p, v);
    return;
  }
  float lane[16];
  lw_store(lane, v);
  LW_ROLL for (int32_t i = 0; i < n; ++i) {
    p[i] = lane[i];
    asm volatile("" ::: "memory");
  }
}

// One rounding of a*b + c.  The product of two f32 is exact in f64; the sum is rounded to odd
// (of the two neighbours of the exact value, the one whose last bit is set), then to f32.
LW_INLINE float lw_fma_exact(float a, float b, float c) {
  double p = (double)a * (double)b, z = (double)c, s = p + z;
  union { double d; uint64_t u; } bits = {s};
  if ((bits.u & 0x7ff0000000000000ull) == 0x7ff0000000000000ull) return (float)s;
  double t = s - p, e = (p - (s - t)) + (z - t);
  if (e != 0.0 && !(bits.u & 1)) bits.u += (e > 0.0) == (s > 0.0) ? 1 : (uint64_t)-1;
  return (float)bits.d;
}

#if defined(LW_AVX512) || defined(LW_AVX2) || defined(LW_NEON)
LW_INLINE lw_f32 lw_fma(lw_f32 a, lw_f32 b, lw_f32 c) { return __builtin_elementwise_fma(a, b, c); }
#else
LW_NOINLINE void lw_fma_lanes(const float* a, const float* b, float* c) {
  LW_ROLL for (int i = 0; i < 16; ++i) c[i] = lw_fma_exact(a[i], b[i], c[i]);
}
LW_INLINE lw_f32 lw_fma(lw_f32 a, lw_f32 b, lw_f32 c) {
  lw_fma_lanes((const float*)&a, (const float*)&b, (float*)&c);
  return c;
}
#endif

// Sixteen binary16 to f32.
LW_INLINE lw_f32 lw_half(const void* p) {
#if defined(LW_AVX512)
  return (lw_f32)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
#else
  lw_u16 h = *(const lw_u16_at*)p;
#if defined(LW_AVX2)
  __m256i v = (__m256i)h;
  __m256 a = _mm256_cvtph_ps(_mm256_castsi256_si128(v));
  __m256 b = _mm256_cvtph_ps(_mm256_extracti128_si256(v, 1));
  return (lw_f32)__builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14,
                                         15);
#elif defined(LW_NEON)
  float32x4_t f[4];
  const float16x8_t a = (float16x8_t)__builtin_shufflevector(h, h, 0, 1, 2, 3, 4, 5, 6, 7);
  const float16x8_t b = (float16x8_t)__builtin_shufflevector(h, h, 8, 9, 10, 11, 12, 13, 14, 15);
  f[0] = vcvt_f32_f16(vget_low_f16(a)), f[1] = vcvt_high_f32_f16(a);
  f[2] = vcvt_f32_f16(vget_low_f16(b)), f[3] = vcvt_high_f32_f16(b);
  return lw_load(f);
#else
  // Exponent and mantissa moved into place, then scaled by 2^112: exact, also for subnormals.
  lw_u32 w = __builtin_convertvector(h, lw_u32);
  lw_f32 f = (lw_f32)((w & 0x7fffu) << 13) * 0x1p112f;
  lw_u32 special = (lw_u32)((w & 0x7c00u) == 0x7c00u) & 0x7f800000u;
  return (lw_f32)((lw_u32)f | special | ((w & 0x8000u) << 16));
#endif
#endif
}

LW_INLINE float lw_half1(const void* p) {
  uint32_t w = lw_load_u16(p);
  union { uint32_t u; float f; } v = {(w & 0x7fffu) << 13};
  v.f *= 0x1p112f;
  if ((w & 0x7c00u) == 0x7c00u) v.u |= 0x7f800000u;
  v.u |= (w & 0x8000u) << 16;
  return v.f;
}

LW_INLINE lw_f32 lw_bfloat(const void* p) {
  return (lw_f32)(__builtin_convertvector(*(const lw_u16_at*)p, lw_u32) << 16);
}

LW_INLINE void lw_prefetch(const void* p) { __builtin_prefetch(p, 0, 3); }
LW_INLINE void lw_prefetch_range(const void* p, int64_t bytes) {
  LW_ROLL for (int64_t i = 0; i < bytes; i += 64) lw_prefetch((const uint8_t*)p + i);
}
