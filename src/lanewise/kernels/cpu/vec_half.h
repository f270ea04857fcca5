// Scalar bits: f32 <-> u32, conversions of f16, bf16 and the 8-bit floats, and f32 fma where no
// instruction gives it.
//
// These are the definitions; the vector conversions of vec.h must equal them bit for bit
// (tests/kernels/test_vec.py walks all halves and all bytes).
#ifndef LW_VEC_HALF_H
#define LW_VEC_HALF_H

#include <stdint.h>

#ifndef LW_INLINE
#define LW_INLINE static inline __attribute__((always_inline, unused))
#endif

LW_INLINE uint32_t lw_bits_f32(float a) {
  uint32_t b;
  __builtin_memcpy(&b, &a, 4);
  return b;
}
LW_INLINE float lw_f32_of_bits(uint32_t b) {
  float a;
  __builtin_memcpy(&a, &b, 4);
  return a;
}

LW_INLINE float lw_f16_to_f32(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000u) << 16, e = (h >> 10) & 31u, m = h & 0x3ffu;
  if (e == 31u) return lw_f32_of_bits(sign | 0x7f800000u | (m << 13) | (m ? 0x400000u : 0u));
  if (e) return lw_f32_of_bits(sign | ((e + 112u) << 23) | (m << 13));
  float v = (float)m * 0x1p-24f;  // subnormal halves are exact in f32
  return lw_f32_of_bits(lw_bits_f32(v) | sign);
}

LW_INLINE uint16_t lw_f32_to_f16(float f) {
  uint32_t b = lw_bits_f32(f), sign = (b >> 16) & 0x8000u, a = b & 0x7fffffffu;
  if (a > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | ((a >> 13) & 0x3ffu));
  if (a >= 0x47800000u) return (uint16_t)(sign | 0x7c00u);  // 65536 and up
  if (a >= 0x38800000u) {  // normal: round at bit 13; a carry moves into the exponent as it should
    uint32_t r = a - 0x38000000u + 0xfffu + ((a >> 13) & 1u);
    return (uint16_t)(sign | (r >> 13));
  }
  if (a < 0x33000000u) return (uint16_t)sign;  // below half of the least subnormal
  uint32_t shift = 126u - (a >> 23), m = (a & 0x7fffffu) | 0x800000u;  // 14..24
  uint32_t q = m >> shift, rest = m & ((1u << shift) - 1u), half = 1u << (shift - 1u);
  q += (rest > half) || (rest == half && (q & 1u));
  return (uint16_t)(sign | q);
}

LW_INLINE float lw_bf16_to_f32(uint16_t h) { return lw_f32_of_bits((uint32_t)h << 16); }

LW_INLINE uint16_t lw_f32_to_bf16(float f) {
  uint32_t b = lw_bits_f32(f);
  if ((b & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((b >> 16) | 0x40u);
  return (uint16_t)((b + 0x7fffu + ((b >> 16) & 1u)) >> 16);
}

// An 8-bit float of M bits of mantissa, exponent bias B; INF is the code past the largest finite
// one: of infinity, or (e4m3, which has no infinity) of NaN.
template <int M_, int B_, int INF_, int NAN_> struct LwF8 {
  static constexpr int M = M_, SHIFT = 23 - M_;
  static constexpr uint32_t INF = INF_, NOT_A_NUMBER = NAN_, REBIAS = (uint32_t)(127 - B_) << 23;
  static constexpr uint32_t NORMAL = REBIAS + (1u << 23);  // the least normal one, in f32 bits
  // The least subnormal, and the number whose last bit is worth as much: adding it rounds there.
  static constexpr uint32_t LEAST = NORMAL - ((uint32_t)M << 23), MAGIC = LEAST + (23u << 23);
};
typedef LwF8<3, 7, 0x7f, 0x7f> lw_e4m3;
typedef LwF8<2, 15, 0x7c, 0x7e> lw_e5m2;

template <class F> LW_INLINE float lw_f8_to_f32(uint8_t h) {
  const uint32_t sign = (uint32_t)(h & 0x80u) << 24, m = h & 0x7fu;
  if (m >= F::INF) return lw_f32_of_bits(sign | (m == 0x7cu ? 0x7f800000u : 0x7fc00000u));
  if (m >> F::M) return lw_f32_of_bits(sign | ((m << F::SHIFT) + F::REBIAS));
  return lw_f32_of_bits(sign | lw_bits_f32((float)m * lw_f32_of_bits(F::LEAST)));
}

template <class F> LW_INLINE uint8_t lw_f32_to_f8(float f) {
  const uint32_t b = lw_bits_f32(f), sign = (b >> 24) & 0x80u, a = b & 0x7fffffffu;
  if (a > 0x7f800000u) return (uint8_t)(sign | F::NOT_A_NUMBER);
  if (a < F::NORMAL) {
    const float sum = lw_f32_of_bits(a) + lw_f32_of_bits(F::MAGIC);
    return (uint8_t)(sign | (lw_bits_f32(sum) - F::MAGIC));
  }
  const uint32_t half = (1u << (F::SHIFT - 1)) - 1u + ((a >> F::SHIFT) & 1u);
  const uint32_t r = (a - F::REBIAS + half) >> F::SHIFT;
  return (uint8_t)(sign | (r < F::INF ? r : F::INF));
}

LW_INLINE float lw_f8_e4m3_to_f32(uint8_t h) { return lw_f8_to_f32<lw_e4m3>(h); }
LW_INLINE float lw_f8_e5m2_to_f32(uint8_t h) { return lw_f8_to_f32<lw_e5m2>(h); }
LW_INLINE uint8_t lw_f32_to_f8_e4m3(float f) { return lw_f32_to_f8<lw_e4m3>(f); }
LW_INLINE uint8_t lw_f32_to_f8_e5m2(float f) { return lw_f32_to_f8<lw_e5m2>(f); }

// a * b + c with one rounding.  The product of two f32 is exact in f64; the sum is rounded to odd
// there (the last bit tells "inexact"), so that the second rounding to f32 is the only one that
// counts.
LW_INLINE float lw_fmaf(float a, float b, float c) {
#if (defined(__FMA__) || defined(__aarch64__)) && !defined(LW_SOFT_FMA)
  return __builtin_fmaf(a, b, c);
#else
  double p = (double)a * (double)b, z = (double)c, s = p + z;
  double t = s - p, e = (p - (s - t)) + (z - t);  // s + e == p + c exactly
  uint64_t bits;
  __builtin_memcpy(&bits, &s, 8);
  if (s - s == 0.0 && e != 0.0 && !(bits & 1u)) {  // finite, inexact, even: step towards e
    bits += ((e > 0.0) == (s > 0.0)) ? 1u : (uint64_t)-1;
    __builtin_memcpy(&s, &bits, 8);
  }
  return (float)s;
#endif
}

#endif  // LW_VEC_HALF_H
