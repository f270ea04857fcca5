// Exact integer sums of one block of 32, straight from packed weights, for T tokens.  Laws:
//  - z[t][sub] = sum over the sub-block of (code - OFFSET) * v, in int32, whatever the route:
//    |z| <= 32 * 128 * 16256 = 66,584,576, so int32 never overflows;
//  - routes: AVX-512 VNNI multiplies unsigned codes by signed words (vpdpbusd, no saturation:
//    4 * 255 * 127 per step); AVX2 adds int16 pair sums, to the depths proved beside them; NEON
//    multiplies bytes (usmmla for two tokens, sdot for one); else plain int32;
//  - codes keep their bias: -OFFSET * sum(v) is added, from the sums made with the activations.
#pragma once
#include "matmul_formats.h"
#include "quant.h"

// Where a kernel finds T activation rows: row pointers and the planes.
template <int T> struct LwRows {
  const uint8_t* row[T];
  LwActs plane;
};

// log2 of the bias.
template <class F> LW_INLINE constexpr int lw_bias() {
  return F::OFFSET == 8 ? 3 : F::OFFSET == 16 ? 4 : F::OFFSET == 32 ? 5 : 7;
}

// -sum(v) of a sub-block.
template <class F, int T>
LW_INLINE int32_t lw_negsum(const LwRows<T>& x, int t, int64_t b, int sub) {
  if constexpr (F::SUBS == 2) return ((const int32_t*)(x.row[t] + x.plane.n16))[b * 2 + sub];
  return ((const int32_t*)(x.row[t] + x.plane.n32))[b];
}

#if defined(LW_AVX512)

LW_INLINE __m512i lw_dpbusd(__m512i acc, __m512i w, const void* four) {
  return _mm512_dpbusd_epi32(acc, w, _mm512_set1_epi32(*(const lw_i32_any*)four));
}

template <class F, int W, int T>
LW_INLINE void lw_dot(const LwBlock& blk, const LwRows<T>& x, int64_t b, lw_i32 z[T][2]) {
  constexpr int per = 8 / F::SUBS;
  LW_UNROLL for (int sub = 0; sub < F::SUBS; ++sub) {
    __m512i hi[T], lo[T];
    LW_UNROLL for (int t = 0; t < T; ++t) {
      hi[t] = lo[t] = _mm512_setzero_si512();
      if constexpr (F::OFFSET == 8) {
        // Loaded into every lane: no work for the units that multiply and shift.
        lo[t] = _mm512_set1_epi32(((const lw_i32_any*)(x.row[t] + x.plane.n8))[b]);
      } else if constexpr (F::OFFSET != 0) {
        __m512i n = _mm512_set1_epi32(lw_negsum<F, T>(x, t, b, sub));
        if (W == 2 && F::OFFSET == 128) hi[t] = n;  // 128 * hi: the shift is done anyway
        else lo[t] = _mm512_slli_epi32(n, lw_bias<F>());
      }
    }
    LW_UNROLL for (int i = 0; i < per; ++i) {
      const int g = sub * per + i;
      __m512i w = (__m512i)lw_group<F::KIND>(blk, g);
      LW_UNROLL for (int t = 0; t < T; ++t) {
        const uint8_t* a = x.row[t] + b * (32 * W) + g * 4;
        if constexpr (W == 2) hi[t] = lw_dpbusd(hi[t], w, a);
        lo[t] = lw_dpbusd(lo[t], w, a + (W - 1) * 32);
      }
    }
    LW_UNROLL for (int t = 0; t < T; ++t) {
      __m512i s = lo[t];
      if constexpr (W == 2) s = _mm512_add_epi32(s, _mm512_slli_epi32(hi[t], 7));
      z[t][sub] = (lw_i32)s;
    }
  }
}

#elif defined(LW_AVX2)

#include "matmul_dot_avx2.h"

#elif defined(LW_DOTPROD)

#include "matmul_dot_neon.h"
#if defined(LW_I8MM)
#include "matmul_dot_i8mm.h"
#endif

template <class F, int W, int T>
LW_INLINE void lw_dot(const LwBlock& blk, const LwRows<T>& x, int64_t b, lw_i32 z[T][2]) {
#if defined(LW_I8MM)
  if constexpr (T % 2 == 0) return lw_dot_pairs<F, W, T>(blk, x, b, z);
#endif
  lw_dot_each<F, W, T>(blk, x, b, z);
}

#else

template <class F, int W, int T>
LW_INLINE void lw_dot(const LwBlock& blk, const LwRows<T>& x, int64_t b, lw_i32 z[T][2]) {
  constexpr int per = 8 / F::SUBS;
  LW_UNROLL for (int sub = 0; sub < F::SUBS; ++sub) {
    LW_UNROLL for (int t = 0; t < T; ++t) z[t][sub] = lw_i32{};
    LW_ROLL for (int i = 0; i < per; ++i) {
      const int g = sub * per + i;
      lw_u32 w = lw_group<F::KIND>(blk, g);
      LW_UNROLL for (int e = 0; e < 4; ++e) {
        // The words plane holds each four as 0 2 1 3.
        lw_i32 c = (lw_i32)((w >> (8 * e)) & 255u) - (int32_t)F::OFFSET;
        const int at = b * 32 + g * 4 + ((e & 1) << 1 | e >> 1);
        LW_UNROLL for (int t = 0; t < T; ++t)
          z[t][sub] += c * (int32_t)((const int16_t*)(x.row[t] + x.plane.words))[at];
      }
    }
  }
}

#endif
