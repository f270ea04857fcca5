// The loops around the tiles.  Laws:
//  - a thread's columns are cut into blocks of whole granules, a block into units (one panel of
//    one matrix; a granule's panels of w, then of w1), walked in the order of memory;
//  - few rows: whole panels, one after the other.  Many: a chunk of K of up to LW_UNITS units,
//    unpacked to scratch where that helps, then every group of tokens passes over it;
//  - an epilogue gets each granule's finished tile once per group of tokens.
// Op (below) is the arithmetic: nothing here adds a number.
#pragma once
#include "matmul_float.h"
#include "matmul_unpacked.h"

struct LwUnit {
  const uint8_t* panel;
  int32_t offset;  // column of the tile row where its lanes go
  int32_t lanes;   // 16, or fewer in the last panel of n
};

// A block of columns: col0 .. col0 + cols of the product.
struct LwColumns {
  int64_t col0, cols;
  int32_t halves, units;
};

LW_INLINE LwColumns lw_columns(const LwMatmul* m, int64_t col0, int64_t width) {
  const int32_t halves = m->w1 ? 2 : 1;
  const int64_t cols = lw_min64(width, m->col1 - col0);
  return {col0, cols, halves, (int32_t)((cols + 15) / 16) * halves};
}

LW_INLINE LwUnit lw_unit(const LwMatmul* m, int64_t panel_bytes, const LwColumns& c, int32_t i) {
  const int32_t per = (int32_t)(m->granule / 16) * c.halves, tile = i / per;
  const int64_t first = tile * m->granule, cols = lw_min64(m->granule, c.cols - first);
  const int32_t panels = (int32_t)((cols + 15) / 16), r = i % per;
  const int32_t half = r >= panels ? 1 : 0, p = r - half * panels;
  const uint8_t* base = (const uint8_t*)(half ? m->w1 : m->w);
  LwUnit u;
  u.panel = base + ((c.col0 + first) / 16 + p) * panel_bytes;
  u.offset = (int32_t)(first * c.halves + half * cols + p * 16);
  u.lanes = (int32_t)lw_min64(16, cols - p * 16);
  return u;
}

LW_INLINE void lw_finish(const LwMatmul* m, const LwColumns& c, const float* tile, int64_t ld,
                         int64_t row0, int64_t rows) {
  for (int64_t f = 0; f < c.cols; f += m->granule)
    m->epilogue(m->env, tile + f * c.halves, ld, row0, (int32_t)rows, c.col0 + f,
                (int32_t)lw_min64(m->granule, c.cols - f));
}

LW_INLINE int64_t lw_block_width(const LwMatmul* m, int64_t least) {
  int64_t width = m->granule;
  while (width < least) width += m->granule;
  return width;
}

template <class Op, int T>
LW_INLINE void lw_direct_group(const LwMatmul* m, const LwUnit* u, int32_t streams, int64_t row,
                               float* tile, int64_t ld) {
  lw_f32 out[Op::STREAMS][T];
  Op::template direct<T>(m, u, row, out);
  for (int32_t p = 0; p < streams; ++p) LW_UNROLL for (int t = 0; t < T; ++t)
    lw_store_n(tile + (row + t) * ld + u[p].offset, out[p][t], u[p].lanes);
}

// All rows over STREAMS units (fewer at the end: the first is read again, and dropped).
template <class Op>
LW_NOINLINE void lw_direct_units(const LwMatmul* m, const LwColumns& c, int64_t bytes, int32_t i,
                                 float* tile, int64_t ld) {
  const int32_t streams = (int32_t)lw_min64(Op::STREAMS, c.units - i);
  LwUnit u[Op::STREAMS];
  for (int32_t p = 0; p < Op::STREAMS; ++p)
    u[p] = lw_unit(m, bytes, c, p < streams ? i + p : i);
  if (i + streams < c.units) {
    // w and w1 take turns: the first lines of what comes next, which no hardware foresees.
    const uint8_t* next = lw_unit(m, bytes, c, i + streams).panel;
    if (next != u[streams - 1].panel + bytes)
      LW_UNROLL for (int64_t b = 0; b < 1024; b += 64) lw_prefetch(next + b);
  }
  int64_t row = 0;
  for (; row + Op::DIRECT <= m->rows; row += Op::DIRECT)
    lw_direct_group<Op, Op::DIRECT>(m, u, streams, row, tile, ld);
  if constexpr (Op::DIRECT > 2)
    for (; row + 2 <= m->rows; row += 2) lw_direct_group<Op, 2>(m, u, streams, row, tile, ld);
  if (row < m->rows) lw_direct_group<Op, 1>(m, u, streams, row, tile, ld);
}

template <class Op> LW_NOINLINE void lw_run_direct(const LwMatmul* m) {
  const int64_t bytes = Op::panel_bytes(m->k);
  const int64_t width = lw_block_width(m, m->w1 ? 16 : 16 * Op::STREAMS);
  float* tile = (float*)((uint8_t*)m->scratch + LW_AT_TILE);
  for (int64_t col = m->col0; col < m->col1; col += width) {
    const LwColumns c = lw_columns(m, col, width);
    const int64_t ld = width * c.halves;
    for (int32_t i = 0; i < c.units; i += Op::STREAMS)
      lw_direct_units<Op>(m, c, bytes, i, tile, ld);
    lw_finish(m, c, tile, ld, 0, m->rows);
  }
}

// One group of T tokens over the unpacked units [first, first + count) of a block of columns.
template <class Op, int T> struct LwGroup {
  LW_INLINE_MEMBER void run(const LwMatmul* m, const LwUnit* units, int32_t count, int64_t row,
                            int64_t cell, int64_t k0, int64_t n, float* tile, int64_t ld) {
    constexpr int panels = T == Op::TOKENS ? (int)Op::PANELS : (int)Op::REST_PANELS;
    const typename Op::template Rows<T> x = Op::template rows<T>(m, row);
    for (int32_t i = 0; i + panels <= count; i += panels)
      step<panels>(m, units, i, x, cell, k0, n, tile, ld);
    if constexpr (panels == 2)
      if (count & 1) step<1>(m, units, count - 1, x, cell, k0, n, tile, ld);
  }
  template <int P>
  LW_INLINE_MEMBER void step(const LwMatmul* m, const LwUnit* units, int32_t i,
                             const typename Op::template Rows<T>& x, int64_t cell, int64_t k0,
                             int64_t n, float* tile, int64_t ld) {
    typename Op::template Sums<T> c[P];
    Op::template tile<P, T>(m, units, i, x, cell * LW_UNITS + i, k0, n, c);
    for (int p = 0; p < P; ++p) {
      LW_UNROLL for (int t = 0; t < T; ++t) {
        const int64_t at = (cell + t) * LW_UNITS + i + p;
        lw_f32 done = Op::template total<T>(m, c[p], t, at, k0 == 0, k0 + n == m->k);
        if (k0 + n == m->k)
          lw_store_n(tile + (cell + t) * ld + units[i + p].offset, done, units[i + p].lanes);
      }
    }
  }
};

// Every group of tokens [row0, row1) over one chunk of K; `last`: nothing is left to add.
template <class Op>
LW_NOINLINE void lw_run_tokens(const LwMatmul* m, const LwColumns& c, const LwUnit* units,
                               int32_t count, int64_t row0, int64_t row1, int64_t k0, int64_t n,
                               float* tile, int64_t ld, bool last) {
  int64_t row = row0;
  while (row < row1) {
    const int64_t left = row1 - row, cell = row - row0;
    int64_t took;
    // Rows are far apart and a chunk of one is short: hardware would find each too late.
    for (int64_t r = row + Op::TOKENS; r < lw_min64(row + 2 * Op::TOKENS, row1); ++r)
      Op::fetch(m, r, k0, n);
    if (left >= Op::TOKENS) {
      took = Op::TOKENS;
      LwGroup<Op, Op::TOKENS>::run(m, units, count, row, cell, k0, n, tile, ld);
    } else if (Op::TOKENS > 4 && left >= 4) {
      took = 4;
      LwGroup<Op, 4>::run(m, units, count, row, cell, k0, n, tile, ld);
    } else if (left >= 2) {
      took = 2;
      LwGroup<Op, 2>::run(m, units, count, row, cell, k0, n, tile, ld);
    } else {
      took = 1;
      LwGroup<Op, 1>::run(m, units, count, row, cell, k0, n, tile, ld);
    }
    if (last) lw_finish(m, c, tile + cell * ld, ld, row, took);
    row += took;
  }
}

// A tuned figure within 1..most, or `most`.
LW_INLINE int64_t lw_tuned(int32_t wish, int64_t most) {
  return wish > 0 && wish < most ? wish : most;
}

template <class Op> LW_NOINLINE void lw_run_tiled(const LwMatmul* m) {
  const LwTuning tuning = m->tuning ? *m->tuning : LwTuning{};
  const int32_t held = (int32_t)lw_tuned(tuning.units, LW_UNITS);
  const int64_t chunk = lw_tuned(tuning.chunk, Op::CHUNK / LW_CHAIN) * LW_CHAIN;
  const int64_t bytes = Op::panel_bytes(m->k);
  const int64_t width = lw_block_width(m, 64 / (m->w1 ? 2 : 1));
  const int64_t ld = width * (m->w1 ? 2 : 1);
  float* tile = (float*)((uint8_t*)m->scratch + LW_AT_TILE);
  // Tokens at once: what the scratch holds (LW_UNITS * 16 totals, ld outputs each), and whose rows
  // stay in half an L2 cache from one block of columns to the next (measured: 3 %), in even parts.
  const int64_t room = LW_CELLS / (ld > LW_UNITS * 16 ? ld : LW_UNITS * 16);
  const int64_t near = LW_NEAR / m->xstride, some = near < Op::NEAR_ROWS ? Op::NEAR_ROWS : near;
  const int64_t most = lw_min64(some, room);
  const int64_t parts = (m->rows + most - 1) / most, each = (m->rows + parts - 1) / parts;
  const int64_t part = lw_min64((each + Op::TOKENS - 1) / Op::TOKENS * Op::TOKENS, room);
  for (int64_t row0 = 0; row0 < m->rows; row0 += part) {
    const int64_t row1 = lw_min64(m->rows, row0 + part);
    for (int64_t col = m->col0; col < m->col1; col += width) {
      const LwColumns c = lw_columns(m, col, width);
      for (int32_t i = 0; i < c.units; i += held) {
        const int32_t count = (int32_t)lw_min64(held, c.units - i);
        LwUnit units[LW_UNITS];
        for (int32_t u = 0; u < count; ++u) units[u] = lw_unit(m, bytes, c, i + u);
        for (int64_t k0 = 0; k0 < m->k; k0 += chunk) {
          const int64_t n = lw_min64(chunk, m->k - k0);
          for (int32_t u = 0; u < count; ++u) Op::unpack(m, units[u].panel, u, k0, n);
          lw_run_tokens<Op>(m, c, units, count, row0, row1, k0, n, tile, ld,
                            i + count == c.units && k0 + n == m->k);
        }
      }
    }
  }
}

template <class Op> LW_INLINE void lw_run(const LwMatmul* m) {
  static_assert((int)Op::TOKENS <= LW_ROWS && (int)Op::DIRECT_ROWS <= LW_ROWS, "rows of a tile");
  if (m->rows <= 0 || m->col1 <= m->col0) return;
  if constexpr (Op::DIRECT_ROWS > 0) {
    if (m->rows <= Op::DIRECT_ROWS) return lw_run_direct<Op>(m);
  }
  if constexpr (Op::EITHER) {
    if (Op::unpacks(m)) return lw_run_tiled<typename Op::Unpacking>(m);
  }
  lw_run_tiled<Op>(m);
}
