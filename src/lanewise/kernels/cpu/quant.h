// Activations as integers: one word (int8) or two (int8x2).  Laws:
//  - group = 32 elements along K; s = max|x| / 16256 (two words) or / 127 (one), f32 division;
//    v = round-half-even(x / s), by division; v = 128*hi + lo, -64 <= lo <= 63;
//  - a group with s below 2^-126 (max|x| < 2e-34, zeros included) is s = 0, v = 0: otherwise s
//    would be too coarse to hold 14 bits;
//  - a group holding an infinity or a NaN is s = NaN, v = 0: every product that reads it is NaN;
//  - |v| <= 16256 (127): max/s <= 16256 * (1 + 2^-23), which rounds to 16256; so |hi| <= 127.
// A row is planes over nb = K/32 blocks, each kernel reading those that it likes:
//  bytes  int8x2: 32 hi then 32 lo of every block; int8: 32 of every block (padded to 64)
//  words  int16 v, each 4 of K in the order 0 2 1 3 (what splitting packed bytes into words gives)
//  s f32[nb]; sv f32[nb] = fl(s * (float)sum v); n32 i32[nb] = -sum v; n16 i32[2 nb], per 16;
//  n8 i32[nb] = -8 sum v, the bias of codes of four bits as it is
//  p32 i32[nb], p16 i32[2 nb], int8x2: what matmul_pairs.h starts from (filled on AVX-512 alone)
#pragma once
#include "lanes.h"

#ifndef LW_QUANT_LINKAGE
#define LW_QUANT_LINKAGE static inline __attribute__((unused))
#endif

// Byte offsets of the planes of a row; W = words per element.
struct LwActs {
  int64_t words, s, sv, n32, n16, n8, p32, p16, bytes;
};

template <int W> LW_INLINE LwActs lw_acts(int64_t k) {
  int64_t nb = k / 32;
  LwActs a;
  a.words = lw_align64(nb * 32 * W);
  a.s = a.words + nb * 64;
  a.sv = a.s + nb * 4;
  a.n32 = a.sv + nb * 4;
  a.n16 = a.n32 + nb * 4;
  a.n8 = a.n16 + nb * 8;
  a.p32 = a.n8 + nb * 4;
  a.p16 = a.p32 + nb * 4 * (W - 1);
  a.bytes = lw_align64(a.p16 + nb * 8 * (W - 1));
  return a;
}

// Which fours of a group are multiplied in pairs (matmul_pairs.h), as bits, and in lanes of two.
enum { LW_PAIRED = 0xda, LW_PAIRED_LANES = 0xf3cc };


// A group's values as int16 and int8.
typedef int16_t lw_i16x2 __attribute__((vector_size(64)));
typedef int16_t lw_i16x2_at __attribute__((vector_size(64), aligned(1), may_alias));
typedef int8_t lw_i8x2 __attribute__((vector_size(32)));
typedef int8_t lw_i8x2_at __attribute__((vector_size(32), aligned(1), may_alias));
typedef int32_t lw_i32_half __attribute__((vector_size(32)));
typedef uint32_t lw_u32_half __attribute__((vector_size(32)));
typedef uint32_t lw_u32_quarter __attribute__((vector_size(16)));
typedef float lw_f32_quarter __attribute__((vector_size(16)));

LW_INLINE lw_i16x2 lw_joined(lw_i32 a, lw_i32 b) {
#if defined(LW_AVX2)
  // They fit, which a compiler does not know.
  const LwPair x = lw_halves((lw_u32)a), y = lw_halves((lw_u32)b);
  return (lw_i16x2)lw_whole(LwPair{_mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xd8),
                                   _mm256_permute4x64_epi64(_mm256_packs_epi32(y.a, y.b), 0xd8)});
#else
  typedef int32_t both __attribute__((vector_size(128)));
  both all = __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16,
                                     17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31);
  return __builtin_convertvector(all, lw_i16x2);
#endif
}
// Each four in the order 0 2 1 3.
LW_INLINE lw_i16x2 lw_crossed(lw_i16x2 v) {
  return __builtin_shufflevector(v, v, 0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15, 16, 18,
                                 17, 19, 20, 22, 21, 23, 24, 26, 25, 27, 28, 30, 29, 31);
}
LW_INLINE void lw_store_bytes(void* p, lw_i16x2 v) {
#if defined(LW_AVX2)
  const LwPair x = lw_halves((lw_u32)v);
  *(__m256i_u*)p = _mm256_permute4x64_epi64(_mm256_packs_epi16(x.a, x.b), 0xd8);
#else
  *(lw_i8x2_at*)p = __builtin_convertvector(v, lw_i8x2);
#endif
}
// The sums of a and of b, side by side: one tree for both.
LW_INLINE void lw_totals(lw_i32 a, lw_i32 b, int32_t* ta, int32_t* tb) {
  lw_i32 s = __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
             __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30,
                                     31);
  lw_i32_half m = __builtin_shufflevector(s, s, 0, 1, 2, 3, 8, 9, 10, 11) +
                  __builtin_shufflevector(s, s, 4, 5, 6, 7, 12, 13, 14, 15);
  m += __builtin_shufflevector(m, m, 2, 3, 2, 3, 6, 7, 6, 7);
  m += __builtin_shufflevector(m, m, 1, 1, 1, 1, 5, 5, 5, 5);
  *ta = m[0];
  *tb = m[4];
}

#if defined(LW_AVX512)
// Minus the sums of both halves of a group, then of the products of neighbours in the fours of
// LW_PAIRED, of both halves; and the same of the whole: {values, products, ..}.
struct LwTotals {
  __m128i halves, whole;
};
LW_INLINE LwTotals lw_minus_totals(lw_i16x2 v) {
  const __m512i all = (__m512i)v, zero = _mm512_setzero_si512();
  const __m512i a = _mm512_madd_epi16(all, _mm512_set1_epi16(-1));
  const __m512i b = _mm512_sub_epi32(
      zero, _mm512_maskz_madd_epi16(LW_PAIRED_LANES, all, _mm512_srli_epi32(all, 16)));
  __m512i s = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
  s = _mm512_add_epi32(s, _mm512_shuffle_epi32(s, (_MM_PERM_ENUM)0x4e));
  s = _mm512_add_epi32(s, _mm512_shuffle_i64x2(s, s, 0xb1));
  const __m128i first = _mm512_castsi512_si128(s), second = _mm512_extracti32x4_epi32(s, 2);
  return {_mm_unpacklo_epi32(first, second), _mm_add_epi32(first, second)};
}
#endif

// The largest, in all lanes: what follows needs no way through other registers.
LW_INLINE lw_u32_quarter lw_top(lw_u32 v) {
  lw_u32_half m = __builtin_elementwise_max(
      __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7),
      __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15));
  lw_u32_quarter q = __builtin_elementwise_max(__builtin_shufflevector(m, m, 0, 1, 2, 3),
                                               __builtin_shufflevector(m, m, 4, 5, 6, 7));
  q = __builtin_elementwise_max(q, __builtin_shufflevector(q, q, 2, 3, 0, 1));
  return __builtin_elementwise_max(q, __builtin_shufflevector(q, q, 1, 0, 3, 2));
}

template <int W> LW_INLINE void lw_quantize_group(const float* x, int64_t b, int64_t k, void* row) {
  const LwActs plane = lw_acts<W>(k);
  uint8_t* p = (uint8_t*)row;
  lw_f32 x0 = lw_load(x), x1 = lw_load(x + 16);
  // The magnitude of a float orders like its bits, NaN above all: an exact maximum, no NaN rules.
  lw_u32 m0 = (lw_u32)x0 & 0x7fffffffu, m1 = (lw_u32)x1 & 0x7fffffffu;
  lw_u32_quarter top = lw_top(__builtin_elementwise_max(m0, m1));
  lw_f32_quarter scale = (lw_f32_quarter)top / (W == 2 ? 16256.0f : 127.0f);
  union { uint32_t u; float f; } s;
  s.f = scale[0];
  lw_i32 v0 = {}, v1 = {};
  if (top[0] >= 0x7f800000u) {
    s.u = 0x7fc00000u;
  } else if (s.u < 0x00800000u) {
    s.u = 0;
  } else {
    // Adding 1.5 * 2^23 rounds half to even at the units and leaves the integer in the low bits.
    const float magic = 12582912.0f;
    v0 = (lw_i32)(x0 / s.f + magic) - 0x4b400000;
    v1 = (lw_i32)(x1 / s.f + magic) - 0x4b400000;
  }
  const lw_i16x2 v = lw_joined(v0, v1);
  *(lw_i16x2_at*)(p + plane.words + b * 64) = lw_crossed(v);
  if constexpr (W == 2) {
    const lw_i16x2 hi = (v + 64) >> 7;
    lw_store_bytes(p + b * 64, hi);
    lw_store_bytes(p + b * 64 + 32, v - (hi << 7));
  } else {
    lw_store_bytes(p + b * 32, v);
  }
  *(lw_f32_any*)(p + plane.s + b * 4) = s.f;
  int32_t minus;  // the sum of all
#if defined(LW_AVX512)
  if constexpr (W == 2) {
    const LwTotals t = lw_minus_totals(v);
    minus = _mm_cvtsi128_si32(t.whole);
    *(lw_i32_any*)(p + plane.p32 + b * 4) = _mm_extract_epi32(t.whole, 1);
    _mm_storel_epi64((__m128i_u*)(p + plane.n16 + b * 8), t.halves);
    _mm_storeh_pd((double*)(p + plane.p16 + b * 8), _mm_castsi128_pd(t.halves));
  } else
#endif
  {
    int32_t t0, t1;
    lw_totals(v0, v1, &t0, &t1);
    minus = -(t0 + t1);
    *(lw_i32_any*)(p + plane.n16 + b * 8) = -t0;
    *(lw_i32_any*)(p + plane.n16 + b * 8 + 4) = -t1;
  }
  *(lw_f32_any*)(p + plane.sv + b * 4) = s.f * (float)-minus;
  *(lw_i32_any*)(p + plane.n32 + b * 4) = minus;
  *(lw_i32_any*)(p + plane.n8 + b * 4) = 8 * minus;
}

// The public names.  x: f32[k] (a whole row) or f32[32] (block `b` of a row of k); row: the
// opaque row, lw_act_bytes_* bytes, 64-aligned.
#define LW_QUANTIZE(NAME, W)                                                                      \
  LW_QUANT_LINKAGE int64_t lw_act_bytes_##NAME(int64_t k) { return lw_acts<W>(k).bytes; }         \
  LW_QUANT_LINKAGE void lw_quantize_block_##NAME(const float* x, int64_t b, int64_t k, void* row) {\
    lw_quantize_group<W>(x, b, k, row);                                                           \
  }                                                                                               \
  LW_QUANT_LINKAGE void lw_quantize_##NAME(const float* x, int64_t k, void* row) {                \
    for (int64_t b = 0; b < k / 32; ++b) lw_quantize_group<W>(x + b * 32, b, k, row);             \
  }
LW_QUANTIZE(int8x2, 2)
LW_QUANTIZE(int8, 1)
