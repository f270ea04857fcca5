// The inner loops of attention: one small product kernel, used twice, and the softmax of a piece.
//
// "q rows" are (row, head) pairs of one kv head, row-major: q row = row * group + head.  All
// scratch matrices have one row per q row.
#ifndef LW_ATTENTION_TILE_H
#define LW_ATTENTION_TILE_H

#include "attention.h"
#include "math.h"
#include "sum.h"

constexpr int64_t LW_ATT_D = 256;               // widest head
constexpr int64_t LW_ATT_LD = LW_ATT_D + 16;    // row stride of q, scores and outputs: no set clash
constexpr int64_t LW_ATT_Q = 128;               // q rows at a time
#if defined(LW_SCALAR)
constexpr int LW_ATT_C = 8;
#elif defined(__AVX512F__) || defined(__aarch64__)
constexpr int LW_ATT_C = 4;  // vectors of columns: 6 x 4 sums + 4 + 1 of 32 registers
#else
constexpr int LW_ATT_C = 2;  // 6 x 2 sums + 2 + 1 of 16 registers
#endif

LW_INLINE vf lw_att_load(const float* p) { return vf_load(p); }
LW_INLINE vf lw_att_load(const uint16_t* p) { return vf_load_f16(p); }

// o[r][c] = fma chain over i < n, ascending, of a[r][i] * b[i][c], from o[r][c] (or 0 if `fresh`):
// R rows, C vectors of columns.  `next`, if any, is read soon in the same shape as b: it is
// asked for into L2, which takes far more requests at a time than L1 (10 -> 17 GB/s measured).
template <int R, int C, bool PREFETCH, class T>
static inline __attribute__((always_inline)) void lw_att_block(const float* a, int64_t n,
                                                               const T* b, int64_t ldb, float* o,
                                                               bool fresh, const T* next) {
  vf acc[R][C];
#pragma clang loop unroll(full)
  for (int r = 0; r < R; ++r)
#pragma clang loop unroll(full)
    for (int c = 0; c < C; ++c)
      acc[r][c] = fresh ? vf_zero() : vf_load(o + r * LW_ATT_LD + c * VF_N);
  for (int64_t i = 0; i < n; ++i, b += ldb, next += ldb) {
    for (int j = 0; PREFETCH && j < C * VF_N; j += 64 / (int)sizeof(T))
      __builtin_prefetch(next + j, 0, 2);
    vf w[C];
#pragma clang loop unroll(full)
    for (int c = 0; c < C; ++c) w[c] = lw_att_load(b + c * VF_N);
#pragma clang loop unroll(full)
    for (int r = 0; r < R; ++r) {
      vf x = vf_set(a[r * LW_ATT_LD + i]);
#pragma clang loop unroll(full)
      for (int c = 0; c < C; ++c) acc[r][c] = vf_fma(x, w[c], acc[r][c]);
    }
  }
#pragma clang loop unroll(full)
  for (int r = 0; r < R; ++r)
#pragma clang loop unroll(full)
    for (int c = 0; c < C; ++c) vf_store(o + r * LW_ATT_LD + c * VF_N, acc[r][c]);
}

// The same over `width` columns (a whole number of vectors).
template <int R, bool PREFETCH, class T>
static __attribute__((noinline)) void lw_att_rows(const float* a, int64_t n, const T* b,
                                                  int64_t ldb, float* o, int64_t width,
                                                  bool fresh, const T* next) {
  int64_t c = 0;
  for (; c + LW_ATT_C * VF_N <= width; c += LW_ATT_C * VF_N)
    lw_att_block<R, LW_ATT_C, PREFETCH>(a, n, b + c, ldb, o + c, fresh, next + c);
  for (; c < width; c += VF_N)
    lw_att_block<R, 1, PREFETCH>(a, n, b + c, ldb, o + c, fresh, next + c);
}

// The same for 1 to 6 rows.  Only a caller that reads the cache itself has a `next` (else NULL).
template <bool PREFETCH, class T>
static inline void lw_att_some(int rows, const float* a, int64_t n, const T* b, int64_t ldb,
                               float* o, int64_t width, bool fresh, const T* next) {
  switch (rows) {
    case 6: return lw_att_rows<6, PREFETCH>(a, n, b, ldb, o, width, fresh, next);
    case 5:
      lw_att_rows<4, PREFETCH>(a, n, b, ldb, o, width, fresh, next);
      a += 4 * LW_ATT_LD, o += 4 * LW_ATT_LD;
      return lw_att_rows<1, false>(a, n, b, ldb, o, width, fresh, next);
    case 4: return lw_att_rows<4, PREFETCH>(a, n, b, ldb, o, width, fresh, next);
    case 3: return lw_att_rows<3, PREFETCH>(a, n, b, ldb, o, width, fresh, next);
    case 2: return lw_att_rows<2, PREFETCH>(a, n, b, ldb, o, width, fresh, next);
    default: return lw_att_rows<1, PREFETCH>(a, n, b, ldb, o, width, fresh, next);
  }
}
template <class T>
static inline void lw_att_product(int rows, const float* a, int64_t n, const T* b, int64_t ldb,
                                  float* o, int64_t width, bool fresh, const T* next = nullptr) {
  if (next) return lw_att_some<true>(rows, a, n, b, ldb, o, width, fresh, next);
  lw_att_some<false>(rows, a, n, b, ldb, o, width, fresh, b);
}

// The lanes of the vector at slot i that lie in [from, to).
LW_INLINE vm lw_att_seen(int64_t i, int64_t from, int64_t to) {
  vi at = vi_add(vi_iota(), vi_set((int32_t)i));
  return vm_and(vi_gt(at, vi_set((int32_t)from - 1)), vi_gt(vi_set((int32_t)to), at));
}

LW_INLINE vf lw_att_score(const float* s, vf scale, float softcap) {
  vf x = vf_mul(vf_load(s), scale);
  if (softcap > 0.0f) x = vf_mul(vf_set(softcap), vf_tanh(vf_div(x, vf_set(softcap))));
  return x;
}

// s[0..256): raw chains -> p; slots [from, to) are visible, the others become +0 as far as the
// whole groups of 32 around them (nobody reads further).  Writes the max and the sum.
static inline void lw_att_softmax(float* s, int64_t from, int64_t to, float scale, float softcap,
                                  float* max, float* sum) {
  int64_t begin = from & ~(int64_t)31, end = (to + 31) & ~(int64_t)31;
  vf top = vf_set(-__builtin_inff()), by = vf_set(scale), zero = vf_zero();
  for (int64_t i = begin; i < end; i += VF_N) {
    vf x = lw_att_score(s + i, by, softcap);
    vf_store(s + i, x);
    bool all = i >= from && i + VF_N <= to;
    top = vf_max(top, all ? x : vf_select(lw_att_seen(i, from, to), x, top));
  }
  *max = vf_hmax(top);
  vf m = vf_set(*max), lanes[LW_SUM_V];
  for (int v = 0; v < LW_SUM_V; ++v) lanes[v] = zero;
  for (int64_t g = begin; g < end; g += 32)
    for (int v = 0; v < LW_SUM_V; ++v) {
      int64_t i = g + v * VF_N;
      vf p = vf_exp(vf_sub(vf_load(s + i), m));
      bool all = i >= from && i + VF_N <= to;
      if (!all) p = vf_select(lw_att_seen(i, from, to), p, zero);
      vf_store(s + i, p);
      lanes[v] = vf_add(lanes[v], p);
    }
  *sum = lw_sum_tree(lanes);
}

// (m, sum, o) of the pieces so far, and of the next one: merged into the first.
static inline void lw_att_merge(float* m, float* sum, float* o, float next_m, float next_sum,
                                const float* next_o, int64_t width) {
  vf pair_max = vf_max(vf_set(*m), vf_set(next_m));
  vf ea = vf_exp(vf_sub(vf_set(*m), pair_max)), eb = vf_exp(vf_sub(vf_set(next_m), pair_max));
  *m = vf_first(pair_max);
  *sum = vf_first(vf_fma(vf_set(next_sum), eb, vf_mul(vf_set(*sum), ea)));
  for (int64_t c = 0; c < width; c += VF_N) {
    int64_t n = width - c < VF_N ? width - c : VF_N;
    vf old = vf_mul(vf_load_n(o + c, n), ea);
    vf_store_n(o + c, vf_fma(vf_load_n(next_o + c, n), eb, old), n);
  }
}

// The merge with a sink: a last piece of max = sink, sum = 1 and o = 0.
static inline void lw_att_sink(float m, float* sum, float* o, float sink, int64_t width) {
  vf pair_max = vf_max(vf_set(m), vf_set(sink));
  vf ea = vf_exp(vf_sub(vf_set(m), pair_max)), eb = vf_exp(vf_sub(vf_set(sink), pair_max));
  *sum = vf_first(vf_fma(vf_set(1.0f), eb, vf_mul(vf_set(*sum), ea)));
  for (int64_t c = 0; c < width; c += VF_N) {
    int64_t n = width - c < VF_N ? width - c : VF_N;
    vf old = vf_mul(vf_load_n(o + c, n), ea);
    vf_store_n(o + c, vf_fma(vf_zero(), eb, old), n);
  }
}

// out = o / sum + 0
static inline void lw_att_finish(float* out, const float* o, float sum, int64_t d) {
  vf by = vf_set(sum), zero = vf_zero();
  for (int64_t c = 0; c < d; c += VF_N) {
    int64_t n = d - c < VF_N ? d - c : VF_N;
    vf_store_n(out + c, vf_add(vf_div(vf_load_n(o + c, n), by), zero), n);
  }
}

#endif  // LW_ATTENTION_TILE_H
