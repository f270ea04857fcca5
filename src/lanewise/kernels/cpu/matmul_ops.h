// The three arithmetics that matmul_run.h drives.  An Op says:
//  PANELS, TOKENS   the size of its tile;  DIRECT  tokens of one pass over packed weights;
//  DIRECT_ROWS      up to which row count the packed weights are read directly (measured);
//  unpack, tile, total (adds a 512 of K to the running total and returns the sum), direct.
#pragma once
#include "matmul_run.h"

LW_INLINE uint8_t* lw_scratch(const LwMatmul* m, int64_t at) { return (uint8_t*)m->scratch + at; }

#if defined(LW_AVX512)
enum { LW_TILE_PANELS = 2, LW_TILE_TOKENS = 6, LW_DIRECT = 4 };
#elif defined(LW_AVX2)
enum { LW_TILE_PANELS = 1, LW_TILE_TOKENS = 6, LW_DIRECT = 2 };
#else
enum { LW_TILE_PANELS = 1, LW_TILE_TOKENS = 4, LW_DIRECT = 2 };
#endif

// Quantised weights, W-word integer activations.
template <class F, int W> struct LwQuantOp {
  enum { PANELS = LW_TILE_PANELS, TOKENS = LW_TILE_TOKENS, DIRECT = LW_DIRECT, DIRECT_ROWS = 4 };
  template <int T> using Sums = LwChains<F, T>;

  LW_INLINE_MEMBER int64_t panel_bytes(int64_t k) { return F::panel(k / 32); }

  template <int T> LW_INLINE_MEMBER LwRows<T> rows(const LwMatmul* m, int64_t row) {
    LwRows<T> x;
    LW_UNROLL for (int t = 0; t < T; ++t) x.row[t] = (const uint8_t*)m->x + (row + t) * m->xstride;
    x.plane = lw_acts<W>(m->k);
    return x;
  }
  template <int T>
  LW_INLINE_MEMBER void direct(const LwMatmul* m, const uint8_t* const panel[2],
                               const uint8_t* const ahead[2], int64_t row, lw_f32 out[2][T]) {
    LwChains<F, T> total[2];
    lw_direct<F, W, T>(panel, ahead, rows<T>(m, row), m->k / 32, total);
    LW_UNROLL for (int p = 0; p < 2; ++p) LW_UNROLL for (int t = 0; t < T; ++t) {
      out[p][t] = total[p].acc[t];
      if constexpr (F::MINS) out[p][t] = total[p].acc[t] + total[p].mins[t];
    }
  }
  LW_INLINE_MEMBER LwUnpacked<F> slot(const LwMatmul* m, int32_t u) {
    return {(lw_u32*)lw_scratch(m, u * LW_CHAIN_BLOCKS * 1024),
            (lw_f32*)lw_scratch(m, LW_AT_SCALES + u * 32 * 64),
            (lw_f32*)lw_scratch(m, LW_AT_MINS + u * 16 * 64)};
  }
  LW_INLINE_MEMBER void unpack(const LwMatmul* m, const uint8_t* panel, int32_t u, int64_t k0,
                               int64_t n) {
    lw_unpack<F>(panel, m->k / 32, k0 / 32, n / 32, slot(m, u));
  }
  template <int P, int T>
  LW_INLINE_MEMBER void tile(const LwMatmul* m, int32_t u, int64_t row, int64_t k0, int64_t n,
                             Sums<T> c[P]) {
    LwUnpacked<F> w[P];
    LW_UNROLL for (int p = 0; p < P; ++p) w[p] = slot(m, u + p);
    lw_tile<F, P, T>(w, rows<T>(m, row), k0 / 32, n / 32, c);
  }
  template <int T>
  LW_INLINE_MEMBER lw_f32 total(const LwMatmul* m, const Sums<T>& c, int t, int64_t at, bool first,
                                bool last) {
    lw_f32* sums = (lw_f32*)lw_scratch(m, LW_AT_TOTALS) + at;
    lw_f32* mins = (lw_f32*)lw_scratch(m, LW_AT_MIN_TOTALS) + at;
    lw_f32 a = first ? c.acc[t] : *sums + c.acc[t], b = {};
    if constexpr (F::MINS) b = first ? c.mins[t] : *mins + c.mins[t];
    if (last) return F::MINS ? a + b : a;
    *sums = a;
    if constexpr (F::MINS) *mins = b;
    return a;
  }
};

// Float weights, f32 activations.
template <class F> struct LwFloatOp {
  enum { PANELS = LW_TILE_PANELS, TOKENS = LW_TILE_TOKENS, DIRECT = LW_DIRECT, DIRECT_ROWS = 4 };
  template <int T> struct Sums {
    lw_f32 v[T];
  };
  LW_INLINE_MEMBER int64_t panel_bytes(int64_t k) { return F::panel(k / 32); }
  LW_INLINE_MEMBER const float* row(const LwMatmul* m, int64_t r) {
    return (const float*)((const uint8_t*)m->x + r * m->xstride);
  }
  template <int T>
  LW_INLINE_MEMBER void direct(const LwMatmul* m, const uint8_t* const panel[2],
                               const uint8_t* const ahead[2], int64_t r, lw_f32 out[2][T]) {
    const float* x[T];
    LW_UNROLL for (int t = 0; t < T; ++t) x[t] = row(m, r + t);
    lw_direct_f32<F, T>(panel, ahead, x, m->k, out);
  }
  LW_INLINE_MEMBER float* slot(const LwMatmul* m, int32_t u) {
    return (float*)lw_scratch(m, u * LW_CHAIN * 64);
  }
  LW_INLINE_MEMBER void unpack(const LwMatmul* m, const uint8_t* panel, int32_t u, int64_t k0,
                               int64_t n) {
    lw_decode_panel<F>(panel, m->k / 32, k0, n, slot(m, u));
  }
  template <int P, int T>
  LW_INLINE_MEMBER void tile(const LwMatmul* m, int32_t u, int64_t r, int64_t k0, int64_t n,
                             Sums<T> c[P]) {
    const float* w[P];
    const float* x[T];
    LW_UNROLL for (int p = 0; p < P; ++p) w[p] = slot(m, u + p);
    LW_UNROLL for (int t = 0; t < T; ++t) x[t] = row(m, r + t) + k0;
    lw_tile_f32<P, T>(w, x, n, (lw_f32(*)[T])c);
  }
  template <int T>
  LW_INLINE_MEMBER lw_f32 total(const LwMatmul* m, const Sums<T>& c, int t, int64_t at, bool first,
                                bool last) {
    lw_f32* sums = (lw_f32*)lw_scratch(m, LW_AT_TOTALS) + at;
    lw_f32 a = first ? c.v[t] : *sums + c.v[t];
    if (!last) *sums = a;
    return a;
  }
};

// The reference mode: any weights, f32 activations, f64 sums.
template <class F> struct LwDoubleOp {
  enum { PANELS = 1, TOKENS = 4, DIRECT = 1, DIRECT_ROWS = 0 };
  template <int T> struct Sums {
    lw_f64 v[T];
  };
  LW_INLINE_MEMBER int64_t panel_bytes(int64_t k) { return F::panel(k / 32); }
  LW_INLINE_MEMBER void unpack(const LwMatmul* m, const uint8_t* panel, int32_t u, int64_t k0,
                               int64_t n) {
    lw_decode_panel<F>(panel, m->k / 32, k0, n, (float*)lw_scratch(m, u * LW_CHAIN * 64));
  }
  template <int P, int T>
  LW_INLINE_MEMBER void tile(const LwMatmul* m, int32_t u, int64_t r, int64_t k0, int64_t n,
                             Sums<T> c[P]) {
    const float* x[T];
    LW_UNROLL for (int t = 0; t < T; ++t) x[t] = LwFloatOp<lw_format_f32>::row(m, r + t) + k0;
    lw_tile_f64<T>((const float*)lw_scratch(m, u * LW_CHAIN * 64), x, n, c[0].v);
  }
  template <int T>
  LW_INLINE_MEMBER lw_f32 total(const LwMatmul* m, const Sums<T>& c, int t, int64_t at, bool first,
                                bool last) {
    lw_f64* sums = (lw_f64*)lw_scratch(m, LW_AT_TOTALS) + at;
    lw_f64 a = first ? c.v[t] : *sums + c.v[t];
    if (!last) *sums = a;
    return __builtin_convertvector(a, lw_f32);
  }
};
