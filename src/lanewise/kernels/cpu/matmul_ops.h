// The three arithmetics that matmul_run.h drives.  An Op says:
//  PANELS, TOKENS   the size of its tile; REST_PANELS: of one of fewer tokens;
//  NEAR_ROWS        rows of a pass over unpacked weights, at least;
//  STREAMS, DIRECT  panels and tokens of one pass over packed weights;
//  DIRECT_ROWS      up to which row count the packed weights are read directly;
//  CHUNK            elements of K that a tile covers;
//  EITHER           its tiles read packed weights, but where `unpacks` says so those of Unpacking;
//  Rows, rows       where a group's activations are;
//  unpack, tile, total (adds a chunk of K to the running total and returns the sum), direct.
#pragma once
#include "matmul_run.h"

LW_INLINE uint8_t* lw_scratch(const LwMatmul* m, int64_t at) { return (uint8_t*)m->scratch + at; }

// Measured (benchmarks/products.py): the smallest figures that lose nothing.
#if defined(LW_AVX512)
enum { LW_TILE_PANELS = 2, LW_TILE_TOKENS = 6, LW_DIRECT_ROWS = 16 };
template <class F, int W> LW_INLINE constexpr bool lw_packed_tiles() { return true; }
template <class F, int W> LW_INLINE constexpr int lw_direct_tokens() { return 4; }
enum { LW_FLOAT_PANELS = 2, LW_FLOAT_TOKENS = 6, LW_FLOAT_DIRECT = 4 };
#elif defined(LW_AVX2)
enum { LW_TILE_PANELS = 1, LW_TILE_TOKENS = 6, LW_DIRECT_ROWS = 16 };
// One word of 5 bits: sums of bytes beat words, and are not deep enough for a tile.
template <class F, int W> LW_INLINE constexpr bool lw_packed_tiles() {
  return W == 1 && F::KIND == LW_BIT;
}
// Two words of bytes need the sums of both: four tokens would spill.
template <class F, int W> LW_INLINE constexpr int lw_direct_tokens() {
  return W == 1 || F::KIND == LW_BYTES ? 4 : 2;
}
enum { LW_FLOAT_PANELS = 1, LW_FLOAT_TOKENS = 6, LW_FLOAT_DIRECT = 2 };
#elif defined(LW_DOTPROD)
enum { LW_TILE_PANELS = 1, LW_TILE_TOKENS = 4, LW_DIRECT_ROWS = 4 };
template <class F, int W> LW_INLINE constexpr bool lw_packed_tiles() { return true; }
template <class F, int W> LW_INLINE constexpr int lw_direct_tokens() { return W == 1 ? 4 : 2; }
enum { LW_FLOAT_PANELS = 1, LW_FLOAT_TOKENS = 6, LW_FLOAT_DIRECT = 2 };
#else
enum { LW_TILE_PANELS = 1, LW_TILE_TOKENS = 4, LW_DIRECT_ROWS = 4 };
template <class F, int W> LW_INLINE constexpr bool lw_packed_tiles() { return false; }
template <class F, int W> LW_INLINE constexpr int lw_direct_tokens() { return 2; }
enum { LW_FLOAT_PANELS = 1, LW_FLOAT_TOKENS = 4, LW_FLOAT_DIRECT = 2 };
#endif

// Tokens of a tile over packed weights.
template <class F, int W> LW_INLINE constexpr int lw_packed_tokens() {
#if defined(LW_AVX512)
  // One word leaves registers for more tokens to share what is unpacked.
  if (W == 1 && !F::MINS && F::SUBS == 1) return 8;
#endif
  return lw_direct_tokens<F, W>();
}

// Quantised weights, W-word integer activations.  PACKED: tiles read the packed weights.
template <class F, int W, bool PACKED> struct LwQuantOp {
#if defined(LW_AVX512)
  static constexpr bool EITHER = PACKED && W == 2;
  LW_INLINE_MEMBER bool unpacks(const LwMatmul* m) { return lw_pairs_pay(m); }
#else
  static constexpr bool EITHER = false;
#endif
  typedef LwQuantOp<F, W, false> Unpacking;
  enum { CHUNK = LW_CHAINS * LW_CHAIN, NEAR_ROWS = PACKED ? 128 : 256 };
  enum { PANELS = PACKED ? 1 : (int)LW_TILE_PANELS, REST_PANELS = 1 };
  enum { TOKENS = PACKED ? lw_packed_tokens<F, W>() : (int)LW_TILE_TOKENS };
  enum { STREAMS = 1, DIRECT = lw_direct_tokens<F, W>() };
  enum { DIRECT_ROWS = PACKED ? 16 : LW_DIRECT_ROWS };
  template <int T> using Sums = LwChains<F, T>;
  template <int T> using Rows = LwRows<T>;

  LW_INLINE_MEMBER int64_t panel_bytes(int64_t k) { return F::panel(k); }

  template <int T> LW_INLINE_MEMBER LwRows<T> rows(const LwMatmul* m, int64_t row) {
    LwRows<T> x;
    LW_UNROLL for (int t = 0; t < T; ++t) x.row[t] = (const uint8_t*)m->x + (row + t) * m->xstride;
    x.plane = lw_acts<W>(m->k);
    return x;
  }
  template <int T>
  LW_INLINE_MEMBER void direct(const LwMatmul* m, const LwUnit* u, int64_t row, lw_f32 out[1][T]) {
    LwChains<F, T> total;
    const int64_t ahead = m->tuning ? m->tuning->ahead : 0;
    lw_direct<F, W, T>(u->panel, rows<T>(m, row), m->k / 32, ahead, total);
    LW_UNROLL for (int t = 0; t < T; ++t) {
      out[0][t] = total.acc[t];
      if constexpr (F::MINS) out[0][t] = total.acc[t] + total.mins[t];
    }
  }
  // Brings the part [k0, k0 + n) of an activation row near.  (A tile of unpacked weights takes so
  // long that hardware does: 1 to 2 % faster.)
  LW_INLINE_MEMBER void fetch(const LwMatmul* m, int64_t row, int64_t k0, int64_t n) {
    if constexpr (!PACKED) return;
    const uint8_t* r = (const uint8_t*)m->x + row * m->xstride;
    const LwActs a = lw_acts<W>(m->k);
    lw_prefetch_range(r + k0 * W, n * W);
    lw_prefetch_range(r + a.s + k0 / 8, n / 8);
    if constexpr (F::MINS) lw_prefetch_range(r + a.sv + k0 / 8, n / 8);
  }
  LW_INLINE_MEMBER LwUnpacked<F> slot(const LwMatmul* m, int32_t u) {
    const int64_t block = u * LW_CHAINS * LW_CHAIN_BLOCKS;
    return {(lw_u32*)lw_scratch(m, block * 1024),
            (lw_f32*)lw_scratch(m, LW_AT_SCALES + block * 128),
            (lw_f32*)lw_scratch(m, LW_AT_MINS + block * 64),
            (lw_i32*)lw_scratch(m, LW_AT_PAIRS + block * 128)};
  }
  LW_INLINE_MEMBER void unpack(const LwMatmul* m, const uint8_t* panel, int32_t u, int64_t k0,
                               int64_t n) {
    if constexpr (!PACKED) lw_unpack<F, W>(panel, m->k / 32, k0 / 32, n / 32, slot(m, u));
  }
  template <int P, int T>
  LW_INLINE_MEMBER void tile(const LwMatmul* m, const LwUnit* units, int32_t u, const LwRows<T>& x,
                             int64_t at, int64_t k0, int64_t n, Sums<T> c[P]) {
    if (k0 > 0) LW_UNROLL for (int p = 0; p < P; ++p) LW_UNROLL for (int t = 0; t < T; ++t) {
      c[p].acc[t] = ((lw_f32*)lw_scratch(m, LW_AT_TOTALS))[at + t * LW_UNITS + p];
      if constexpr (F::MINS)
        c[p].mins[t] = ((lw_f32*)lw_scratch(m, LW_AT_MIN_TOTALS))[at + t * LW_UNITS + p];
    }
    if constexpr (PACKED) {
      lw_packed_tile<F, W, T>(units[u].panel, m->k / 32, x, k0 / 32, (k0 + n) / 32, c[0]);
    } else {
      LwUnpacked<F> w[P];
      LW_UNROLL for (int p = 0; p < P; ++p) w[p] = slot(m, u + p);
      lw_tile<F, W, P, T>(w, x, k0 / 32, n / 32, c);
    }
  }
  // A tile has added what came before.
  template <int T>
  LW_INLINE_MEMBER lw_f32 total(const LwMatmul* m, const Sums<T>& c, int t, int64_t at, bool,
                                bool last) {
    if (!last) {
      ((lw_f32*)lw_scratch(m, LW_AT_TOTALS))[at] = c.acc[t];
      if constexpr (F::MINS) ((lw_f32*)lw_scratch(m, LW_AT_MIN_TOTALS))[at] = c.mins[t];
    }
    if constexpr (F::MINS) return c.acc[t] + c.mins[t];
    return c.acc[t];
  }
};

template <int T> struct LwFloatRows {
  const float* v[T];
};

// Float weights, f32 activations.
template <class F> struct LwFloatOp {
  enum { PANELS = LW_FLOAT_PANELS, REST_PANELS = PANELS, TOKENS = LW_FLOAT_TOKENS };
  static constexpr bool EITHER = false;
  enum { STREAMS = 2, DIRECT = LW_FLOAT_DIRECT, DIRECT_ROWS = 4 };
  enum { CHUNK = LW_CHAIN, NEAR_ROWS = 128 };
  template <int T> struct Sums {
    lw_f32 v[T];
  };
  template <int T> using Rows = LwFloatRows<T>;
  LW_INLINE_MEMBER int64_t panel_bytes(int64_t k) { return F::panel(k); }
  LW_INLINE_MEMBER void fetch(const LwMatmul* m, int64_t r, int64_t k0, int64_t n) {
    lw_prefetch_range(row(m, r) + k0, n * 4);
  }
  LW_INLINE_MEMBER const float* row(const LwMatmul* m, int64_t r) {
    return (const float*)((const uint8_t*)m->x + r * m->xstride);
  }
  template <int T> LW_INLINE_MEMBER LwFloatRows<T> rows(const LwMatmul* m, int64_t r) {
    LwFloatRows<T> x;
    LW_UNROLL for (int t = 0; t < T; ++t) x.v[t] = row(m, r + t);
    return x;
  }
  template <int T>
  LW_INLINE_MEMBER void direct(const LwMatmul* m, const LwUnit* u, int64_t r, lw_f32 out[2][T]) {
    const LwFloatRows<T> x = rows<T>(m, r);
    const uint8_t* const panel[2] = {u[0].panel, u[1].panel};
    lw_direct_f32<F, T>(panel, x.v, m->k, out);
  }
  LW_INLINE_MEMBER float* slot(const LwMatmul* m, int32_t u) {
    return (float*)lw_scratch(m, u * LW_CHAIN * 64);
  }
  LW_INLINE_MEMBER void unpack(const LwMatmul* m, const uint8_t* panel, int32_t u, int64_t k0,
                               int64_t n) {
    lw_decode_panel<F>(panel, m->k / 32, k0, n, slot(m, u));
  }
  template <int P, int T>
  LW_INLINE_MEMBER void tile(const LwMatmul* m, const LwUnit*, int32_t u,
                             const LwFloatRows<T>& from, int64_t, int64_t k0, int64_t n,
                             Sums<T> c[P]) {
    const float* w[P];
    const float* x[T];
    LW_UNROLL for (int p = 0; p < P; ++p) w[p] = slot(m, u + p);
    LW_UNROLL for (int t = 0; t < T; ++t) x[t] = from.v[t] + k0;
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
  static constexpr bool EITHER = false;
  enum { PANELS = 1, REST_PANELS = 1, TOKENS = 4, NEAR_ROWS = 128 };
  enum { STREAMS = 1, DIRECT = 1, DIRECT_ROWS = 0, CHUNK = LW_CHAIN };
  template <int T> struct Sums {
    lw_f64 v[T];
  };
  template <int T> using Rows = LwFloatRows<T>;
  template <int T> LW_INLINE_MEMBER LwFloatRows<T> rows(const LwMatmul* m, int64_t r) {
    return LwFloatOp<lw_format_f32>::rows<T>(m, r);
  }
  LW_INLINE_MEMBER int64_t panel_bytes(int64_t k) { return F::panel(k); }
  LW_INLINE_MEMBER void fetch(const LwMatmul*, int64_t, int64_t, int64_t) {}
  LW_INLINE_MEMBER void unpack(const LwMatmul* m, const uint8_t* panel, int32_t u, int64_t k0,
                               int64_t n) {
    lw_decode_panel<F>(panel, m->k / 32, k0, n, (float*)lw_scratch(m, u * LW_CHAIN * 64));
  }
  template <int P, int T>
  LW_INLINE_MEMBER void tile(const LwMatmul* m, const LwUnit*, int32_t u,
                             const LwFloatRows<T>& from, int64_t, int64_t k0, int64_t n,
                             Sums<T> c[P]) {
    const float* x[T];
    LW_UNROLL for (int t = 0; t < T; ++t) x[t] = from.v[t] + k0;
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
