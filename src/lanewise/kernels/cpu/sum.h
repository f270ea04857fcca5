// The Sums recipe: every long f32 sum that is not a product.
//
// Pieces of 512 elements; in a piece, 32 virtual lanes (lane = index mod 32) that add ascending
// from +0; then a halving tree (l[i] + l[i+16], +8, +4, +2, +1).  A short piece is padded with +0.
// The pieces' sums are added ascending.  The order depends on the length alone.
#ifndef LW_SUM_H
#define LW_SUM_H

#include "vec.h"

constexpr int64_t LW_SUM_PIECE = 512;
constexpr int LW_SUM_V = 32 / VF_N;  // vectors that hold the 32 lanes

LW_INLINE float lw_sum_tree(vf* lanes) {
  for (int half = LW_SUM_V / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] = vf_add(lanes[i], lanes[i + half]);
  return vf_hadd(lanes[0]);
}

struct lw_sum_same {
  static inline __attribute__((always_inline)) vf of(vf a) { return a; }
};
struct lw_sum_square {
  static inline __attribute__((always_inline)) vf of(vf a) { return vf_mul(a, a); }
};
struct lw_sum_deviation {  // (x - mean)^2
  float mean;
  inline __attribute__((always_inline)) vf of(vf a) const {
    vf d = vf_sub(a, vf_set(mean));
    return vf_mul(d, d);
  }
};

// The sum of f(x[i]); lanes past n add +0, whatever f(0) is.
template <class F> LW_INLINE float lw_sum_map(const float* x, int64_t n, F f) {
  float total = 0.0f;
  for (int64_t at = 0; at < n; at += LW_SUM_PIECE) {
    int64_t end = n - at < LW_SUM_PIECE ? n : at + LW_SUM_PIECE, i = at;
    vf lanes[LW_SUM_V];
    for (int v = 0; v < LW_SUM_V; ++v) lanes[v] = vf_zero();
    for (; i + 32 <= end; i += 32)
      for (int v = 0; v < LW_SUM_V; ++v)
        lanes[v] = vf_add(lanes[v], f.of(vf_load(x + i + v * VF_N)));
    for (int v = 0; v < LW_SUM_V && i < end; ++v, i += VF_N) {
      int64_t left = end - i < VF_N ? end - i : VF_N;
      vf term = vf_select(vm_first(left), f.of(vf_load_n(x + i, left)), vf_zero());
      lanes[v] = vf_add(lanes[v], term);
    }
    total += lw_sum_tree(lanes);
  }
  return total;
}

LW_INLINE float lw_sum(const float* x, int64_t n) { return lw_sum_map(x, n, lw_sum_same{}); }
LW_INLINE float lw_sum_squares(const float* x, int64_t n) {
  return lw_sum_map(x, n, lw_sum_square{});
}

// The largest element: NaN if any is NaN; -inf for n = 0.
LW_INLINE float lw_max(const float* x, int64_t n) {
  vf m = vf_set(-__builtin_inff());
  int64_t i = 0;
  for (; i + VF_N <= n; i += VF_N) m = vf_max(m, vf_load(x + i));
  if (i < n) m = vf_max(m, vf_select(vm_first(n - i), vf_load_n(x + i, n - i), m));
  return vf_hmax(m);
}

#endif  // LW_SUM_H
