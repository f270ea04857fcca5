// Rotary embedding of one head.  `table` is the row of this position: rotary/2 cosines, then
// rotary/2 sines (f32).  The elements from `rotary` up to `d` pass through.  `out` may be `x`.
//
//   (a, b) -> (a*c - b*s, b*c + a*s), each product and each sum rounded once to f32 (no fma).
//   half:         pairs (i, i + rotary/2)
//   interleaved:  pairs (2i, 2i + 1)
#ifndef LW_ROPE_H
#define LW_ROPE_H

#include "vec.h"

static inline __attribute__((unused)) void lw_rope_half(const float* x, const float* table,
                                                        int64_t rotary, int64_t d, float* out) {
  int64_t h = rotary / 2;
  for (int64_t i = 0; i < h; i += VF_N) {
    int64_t n = h - i < VF_N ? h - i : VF_N;
    vf a = vf_load_n(x + i, n), b = vf_load_n(x + h + i, n);
    vf c = vf_load_n(table + i, n), s = vf_load_n(table + h + i, n);
    vf_store_n(out + i, vf_sub(vf_mul(a, c), vf_mul(b, s)), n);
    vf_store_n(out + h + i, vf_add(vf_mul(b, c), vf_mul(a, s)), n);
  }
  if (x != out)
    for (int64_t i = 2 * h; i < d; ++i) out[i] = x[i];
}

static inline __attribute__((unused)) void lw_rope_interleaved(const float* x, const float* table,
                                                               int64_t rotary, int64_t d,
                                                               float* out) {
  int64_t h = rotary / 2;
  for (int64_t i = 0; i < h; ++i) {
    float a = x[2 * i], b = x[2 * i + 1], c = table[i], s = table[h + i];
    float ac = a * c, bs = b * s, bc = b * c, as = a * s;
    out[2 * i] = ac - bs;
    out[2 * i + 1] = bc + as;
  }
  if (x != out)
    for (int64_t i = 2 * h; i < d; ++i) out[i] = x[i];
}

#endif  // LW_ROPE_H
