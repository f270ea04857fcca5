// Tiles of float products, and of the reference mode.  Laws:
//  - f32: acc = fma(w, x, acc) ascending K, a new chain from zero every 512, chains added
//    ascending; narrow weights widen exactly;
//  - f64: w decoded exactly as its format says, in f32; acc = acc + w * x in f64 (the product of
//    two f32 is exact in f64, so a fused operation gives the same bits), the same 512 rule; the
//    total is rounded once to f32;
//  - K of float weights is any number >= 1.
#pragma once
#include "matmul.h"
#include "matmul_formats.h"

template <class F, int T>
LW_NOINLINE void lw_direct_f32(const uint8_t* const panel[2], const float* const rows[T], int64_t k,
                               lw_f32 total[2][T]) {
  const float* x[T];
  LW_UNROLL for (int t = 0; t < T; ++t) x[t] = rows[t];
  const uint8_t* const p0[2] = {panel[0], panel[1]};
  for (int64_t k0 = 0; k0 < k; k0 += LW_CHAIN) {
    const int64_t k1 = lw_min64(k, k0 + LW_CHAIN);
    lw_f32 acc[2][T] = {};
    _Pragma("clang loop unroll_count(4)") for (int64_t i = k0; i < k1; ++i) {
      const lw_f32 w0 = F::at(p0[0], i), w1 = F::at(p0[1], i);
      LW_UNROLL for (int t = 0; t < T; ++t) {
        const lw_f32 v = lw_all(x[t][i]);
        acc[0][t] = lw_fma(w0, v, acc[0][t]);
        acc[1][t] = lw_fma(w1, v, acc[1][t]);
      }
    }
    LW_UNROLL for (int p = 0; p < 2; ++p) LW_UNROLL for (int t = 0; t < T; ++t)
      total[p][t] = k0 == 0 ? acc[p][t] : total[p][t] + acc[p][t];
  }
}

// P panels of f32 [k][16 rows] x T rows, one chain of n of K.
template <int P, int T>
LW_NOINLINE void lw_tile_f32(const float* const panel[P], const float* const rows[T], int64_t n,
                             lw_f32 c[P][T]) {
  const float* w[P];
  const float* x[T];
  lw_f32 acc[P][T] = {};
  LW_UNROLL for (int p = 0; p < P; ++p) w[p] = panel[p];
  LW_UNROLL for (int t = 0; t < T; ++t) x[t] = rows[t];
  _Pragma("clang loop unroll_count(4)") for (int64_t i = 0; i < n; ++i) {
    lw_f32 v[P];
    LW_UNROLL for (int p = 0; p < P; ++p) v[p] = lw_load(w[p] + i * 16);
    LW_UNROLL for (int t = 0; t < T; ++t) {
      const lw_f32 a = lw_all(x[t][i]);
      LW_UNROLL for (int p = 0; p < P; ++p) acc[p][t] = lw_fma(v[p], a, acc[p][t]);
    }
  }
  LW_UNROLL for (int p = 0; p < P; ++p) LW_UNROLL for (int t = 0; t < T; ++t) c[p][t] = acc[p][t];
}

// v * x + c where v * x is exact: fused or not, one rounding.
LW_INLINE lw_f64 lw_fma64(lw_f64 v, double x, lw_f64 c) {
#if defined(LW_AVX512) || defined(LW_AVX2) || (defined(__aarch64__) && !defined(LW_SCALAR))
  return __builtin_elementwise_fma(v, lw_f64{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}, c);
#else
  return c + v * x;
#endif
}

template <int T>
LW_NOINLINE void lw_tile_f64(const float* w, const float* const rows[T], int64_t n, lw_f64 c[T]) {
  const float* x[T];
  lw_f64 acc[T] = {};
  LW_UNROLL for (int t = 0; t < T; ++t) x[t] = rows[t];
  LW_ROLL for (int64_t i = 0; i < n; ++i) {
    const lw_f64 v = __builtin_convertvector(lw_load(w + i * 16), lw_f64);
    LW_UNROLL for (int t = 0; t < T; ++t) acc[t] = lw_fma64(v, (double)x[t][i], acc[t]);
  }
  LW_UNROLL for (int t = 0; t < T; ++t) c[t] = acc[t];
}

// n of K from element k0 (a multiple of 32) of a panel, decoded to f32 [n][16 rows].
template <class F>
LW_NOINLINE void lw_decode_panel(const uint8_t* panel, int64_t nb, int64_t k0, int64_t n,
                                 float* to) {
  if constexpr (lw_is_float<F>()) {
    LW_ROLL for (int64_t i = 0; i < n; ++i) lw_store(to + i * 16, F::at(panel, k0 + i));
  } else {
    LW_ROLL for (int64_t i = 0; i < n / 32; ++i) {
      const LwBlock blk = F::block(panel, k0 / 32 + i, nb);
      const lw_f32 m = F::minimum(blk);
      LW_UNROLL for (int g = 0; g < 8; ++g) {
        const lw_u32 codes = lw_group<F::KIND>(blk, g);
        const lw_f32 d = F::scale(blk, g * F::SUBS / 8);
        LW_UNROLL for (int e = 0; e < 4; ++e)
          lw_store(to + (i * 32 + g * 4 + e) * 16, lw_decode<F>(codes, e, d, m));
      }
    }
  }
}
