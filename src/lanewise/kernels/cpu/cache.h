// Writing one position into the paged KV pool of a layer.
//
// A *part* is `span` positions of a head, together in memory: 64, the block of attention's
// recipe, or 16 or 32 where pages are that small.  K: [part][kv_head][d][span], a panel (lane =
// position, so that a score chain reads vectors); V: [part][kv_head][span][d].  A page is one part,
// or several of 64, one after the other.  The caller finds the part (`lw_part`) and the offset.
#ifndef LW_CACHE_H
#define LW_CACHE_H

#include "vec.h"

constexpr int64_t LW_PAGE = 64;  // positions of a block; the most of a part

// Elements before a head's part; the same for K and V.
LW_INLINE int64_t lw_kv_base(int64_t d, int64_t kv_heads, int64_t kvh, uint32_t part,
                             int64_t span) {
  return ((int64_t)part * kv_heads + kvh) * d * span;
}

#define LW_KV_STORE static inline __attribute__((unused)) void
#define LW_KV_PLACE                                                                            \
  const float *head, int64_t d, void *pool, int64_t kv_heads, int64_t kvh, uint32_t part,      \
      uint32_t offset, int64_t span
LW_INLINE int64_t lw_kv_tail(int64_t d, int64_t i) { return d - i < VF_N ? d - i : VF_N; }

LW_KV_STORE lw_k_store_f32(LW_KV_PLACE) {
  float* to = (float*)pool + lw_kv_base(d, kv_heads, kvh, part, span) + offset;
  for (int64_t i = 0; i < d; ++i) to[i * span] = head[i];
}

LW_KV_STORE lw_v_store_f32(LW_KV_PLACE) {
  float* to = (float*)pool + lw_kv_base(d, kv_heads, kvh, part, span) + (int64_t)offset * d;
  for (int64_t i = 0; i < d; i += VF_N)
    vf_store_n(to + i, vf_load_n(head + i, lw_kv_tail(d, i)), lw_kv_tail(d, i));
}

// The halves, f16 and bf16, differ in their rounding alone.
template <void ROUND(uint16_t*, vf)> LW_INLINE void lw_k_store_half(LW_KV_PLACE) {
  uint16_t* to = (uint16_t*)pool + lw_kv_base(d, kv_heads, kvh, part, span) + offset;
  for (int64_t i = 0; i < d; i += VF_N) {
    const int64_t n = lw_kv_tail(d, i);
    uint16_t halves[VF_N];
    ROUND(halves, vf_load_n(head + i, n));
    for (int64_t j = 0; j < n; ++j) to[(i + j) * span] = halves[j];
  }
}
template <void ROUND(uint16_t*, vf, int64_t)> LW_INLINE void lw_v_store_half(LW_KV_PLACE) {
  uint16_t* to = (uint16_t*)pool + lw_kv_base(d, kv_heads, kvh, part, span) + (int64_t)offset * d;
  for (int64_t i = 0; i < d; i += VF_N)
    ROUND(to + i, vf_load_n(head + i, lw_kv_tail(d, i)), lw_kv_tail(d, i));
}
#define LW_KV_GIVEN head, d, pool, kv_heads, kvh, part, offset, span
LW_KV_STORE lw_k_store_f16(LW_KV_PLACE) { lw_k_store_half<vf_store_f16>(LW_KV_GIVEN); }
LW_KV_STORE lw_v_store_f16(LW_KV_PLACE) { lw_v_store_half<vf_store_f16_n>(LW_KV_GIVEN); }
LW_KV_STORE lw_k_store_bf16(LW_KV_PLACE) { lw_k_store_half<vf_store_bf16>(LW_KV_GIVEN); }
LW_KV_STORE lw_v_store_bf16(LW_KV_PLACE) { lw_v_store_half<vf_store_bf16_n>(LW_KV_GIVEN); }

// q8_0: the 32 channels of a group share a scale (see quant/caches.py for the rule).  A part of a
// head is its codes, as above, then its scales, f16: of K [d / 32][span], of V [span][d / 32].
LW_INLINE int64_t lw_q8_0_base(int64_t d, int64_t kv_heads, int64_t kvh, uint32_t part,
                               int64_t span) {
  return lw_kv_base(d, kv_heads, kvh, part, span) / 32 * 34;  // bytes
}

// 32 numbers into codes; the scale's bits.
static inline __attribute__((unused)) uint16_t lw_q8_0_group(const float* x, int8_t* codes) {
  vf top = vf_zero();
  for (int i = 0; i < 32; i += VF_N) top = vf_max(top, vf_abs(vf_load(x + i)));
  uint16_t scale = lw_f32_to_f16(vf_hmax(top) / 127.0f);
  if ((scale & 0x7c00u) == 0x7c00u) scale = 0x7e00u;
  int32_t v[32];
  vf s = vf_set(lw_f16_to_f32(scale)), most = vf_set(127.0f), least = vf_set(-127.0f);
  bool none = scale == 0 || scale == 0x7e00u;
  for (int i = 0; i < 32; i += VF_N) {
    vf q = vf_min(vf_max(vf_rint(vf_div(vf_load(x + i), s)), least), most);
    vi_store(v + i, none ? vi_set(0) : vf_to_i(q));
  }
  for (int i = 0; i < 32; ++i) codes[i] = (int8_t)v[i];
  return scale;
}

LW_KV_STORE lw_k_store_q8_0(LW_KV_PLACE) {
  int8_t* to = (int8_t*)pool + lw_q8_0_base(d, kv_heads, kvh, part, span) + offset;
  uint16_t* scales = (uint16_t*)(to - offset + d * span) + offset;
  for (int64_t g = 0; g < d / 32; ++g) {
    int8_t codes[32];
    scales[g * span] = lw_q8_0_group(head + 32 * g, codes);
    for (int64_t i = 0; i < 32; ++i) to[(32 * g + i) * span] = codes[i];
  }
}

LW_KV_STORE lw_v_store_q8_0(LW_KV_PLACE) {
  int8_t* base = (int8_t*)pool + lw_q8_0_base(d, kv_heads, kvh, part, span);
  uint16_t* scales = (uint16_t*)(base + d * span) + (int64_t)offset * (d / 32);
  for (int64_t g = 0; g < d / 32; ++g)
    scales[g] = lw_q8_0_group(head + 32 * g, base + (int64_t)offset * d + 32 * g);
}

#endif  // LW_CACHE_H
