// The inner loops of attention: one small product kernel, used twice, and the softmax of a piece.
//
// "q rows" are (row, head) pairs of one kv head, row-major: q row = row * group + head.  All scratch
// matrices have one row per q row.
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
// R rows, C vectors of columns.
template <int R, int C, class T>
static inline __attribute__((always_inline)) void lw_att_block(const float* a, int64_t n,
                                                               const T* b, int64_t ldb, float* o,
                                                               bool fresh) {
  vf acc[R][C];
#pragma clang loop unroll(full)
  for (int r = 0; r < R; ++r)
#pragma clang loop unroll(full)
    for (int c = 0; c < C; ++c)
      acc[r][c] = fresh ? vf_zero() : vf_load(o + r * LW_ATT_LD + c * VF_N);
  for (int64_t i = 0; i < n; ++i, b += ldb) {
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
template <int R, class T>
static __attribute__((noinline)) void lw_att_rows(const float* a, int64_t n, const T* b,
                                                  int64_t ldb, float* o, int64_t width,
                                                  bool fresh) {
  int64_t c = 0;
  for (; c + LW_ATT_C * VF_N <= width; c += LW_ATT_C * VF_N)
    lw_att_block<R, LW_ATT_C>(a, n, b + c, ldb, o + c, fresh);
  for (; c < width; c += VF_N) lw_att_block<R, 1>(a, n, b + c, ldb, o + c, fresh);
}

// The same for 1 to 6 rows.
template <class T>
static inline void lw_att_product(int rows, const float* a, int64_t n, const T* b, int64_t ldb,
                                  float* o, int64_t width, bool fresh) {
  switch (rows) {
    case 6: return lw_att_rows<6>(a, n, b, ldb, o, width, fresh);
    case 5:
      lw_att_rows<4>(a, n, b, ldb, o, width, fresh);
      return lw_att_rows<1>(a + 4 * LW_ATT_LD, n, b, ldb, o + 4 * LW_ATT_LD, width, fresh);
    case 4: return lw_att_rows<4>(a, n, b, ldb, o, width, fresh);
    case 3: return lw_att_rows<3>(a, n, b, ldb, o, width, fresh);
    case 2: return lw_att_rows<2>(a, n, b, ldb, o, width, fresh);
    default: return lw_att_rows<1>(a, n, b, ldb, o, width, fresh);
  }
}

// s[0..256): raw chains -> p; slots [from, to) are visible, the others become +0 as far as the whole
// groups of 32 around them (nobody reads further).  Writes the max and the sum.
static inline void lw_att_softmax(float* s, int64_t from, int64_t to, float scale, float softcap,
                                  float* max, float* sum) {
  int64_t begin = from & ~(int64_t)31, end = (to + 31) & ~(int64_t)31;
  vf top = vf_set(-__builtin_inff()), by = vf_set(scale), cap = vf_set(softcap);
  for (int64_t i = begin; i < end; i += VF_N) {
    vf x = vf_mul(vf_load(s + i), by);
    if (softcap > 0.0f) x = vf_mul(cap, vf_tanh(vf_div(x, cap)));
    vf_store(s + i, x);
    vi at = vi_add(vi_iota(), vi_set((int32_t)i));
    vm seen = vm_and(vi_gt(at, vi_set((int32_t)from - 1)), vi_gt(vi_set((int32_t)to), at));
    top = vf_max(top, vf_select(seen, x, top));
  }
  *max = vf_hmax(top);
  vf m = vf_set(*max), lanes[LW_SUM_V];
  for (int v = 0; v < LW_SUM_V; ++v) lanes[v] = vf_zero();
  for (int64_t i = begin; i < end; i += 32)
    for (int v = 0; v < LW_SUM_V; ++v) {
      int64_t j = i + v * VF_N;
      vi at = vi_add(vi_iota(), vi_set((int32_t)j));
      vm seen = vm_and(vi_gt(at, vi_set((int32_t)from - 1)), vi_gt(vi_set((int32_t)to), at));
      vf p = vf_select(seen, vf_exp(vf_sub(vf_load(s + j), m)), vf_zero());
      vf_store(s + j, p);
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

// out = o / sum + 0
static inline void lw_att_finish(float* out, const float* o, float sum, int64_t d) {
  vf by = vf_set(sum), zero = vf_zero();
  for (int64_t c = 0; c < d; c += VF_N) {
    int64_t n = d - c < VF_N ? d - c : VF_N;
    vf_store_n(out + c, vf_add(vf_div(vf_load_n(o + c, n), by), zero), n);
  }
}

#endif  // LW_ATTENTION_TILE_H
