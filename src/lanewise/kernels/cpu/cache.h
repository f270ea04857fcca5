// Writing one position into the paged KV pool of a layer.
//
// Pages hold 64 positions.  K: [page][kv_head][d][64], a panel (lane = position, so that a score
// chain reads vectors); V: [page][kv_head][64][d].  The caller finds page and offset: offset =
// position % 64, page = table[slot * table_width + position / 64], and writes nothing for a page id
// that is not below the pool's page count.
#ifndef LW_CACHE_H
#define LW_CACHE_H

#include "vec.h"

constexpr int64_t LW_PAGE = 64;  // positions

LW_INLINE int64_t lw_kv_base(int64_t d, int64_t kv_heads, int64_t kvh, uint32_t page) {
  return ((int64_t)page * kv_heads + kvh) * d * LW_PAGE;  // elements; the same for K and V
}

static inline __attribute__((unused)) void lw_k_store_f32(const float* head, int64_t d, void* pool,
                                                          int64_t kv_heads, int64_t kvh,
                                                          uint32_t page, uint32_t offset) {
  float* to = (float*)pool + lw_kv_base(d, kv_heads, kvh, page) + offset;
  for (int64_t i = 0; i < d; ++i) to[i * LW_PAGE] = head[i];
}

static inline __attribute__((unused)) void lw_k_store_f16(const float* head, int64_t d, void* pool,
                                                          int64_t kv_heads, int64_t kvh,
                                                          uint32_t page, uint32_t offset) {
  uint16_t* to = (uint16_t*)pool + lw_kv_base(d, kv_heads, kvh, page) + offset;
  for (int64_t i = 0; i < d; i += VF_N) {
    int64_t n = d - i < VF_N ? d - i : VF_N;
    uint16_t halves[VF_N];
    vf_store_f16(halves, vf_load_n(head + i, n));
    for (int64_t j = 0; j < n; ++j) to[(i + j) * LW_PAGE] = halves[j];
  }
}

static inline __attribute__((unused)) void lw_v_store_f32(const float* head, int64_t d, void* pool,
                                                          int64_t kv_heads, int64_t kvh,
                                                          uint32_t page, uint32_t offset) {
  float* to = (float*)pool + lw_kv_base(d, kv_heads, kvh, page) + (int64_t)offset * d;
  for (int64_t i = 0; i < d; i += VF_N) {
    int64_t n = d - i < VF_N ? d - i : VF_N;
    vf_store_n(to + i, vf_load_n(head + i, n), n);
  }
}

static inline __attribute__((unused)) void lw_v_store_f16(const float* head, int64_t d, void* pool,
                                                          int64_t kv_heads, int64_t kvh,
                                                          uint32_t page, uint32_t offset) {
  uint16_t* to = (uint16_t*)pool + lw_kv_base(d, kv_heads, kvh, page) + (int64_t)offset * d;
  for (int64_t i = 0; i < d; i += VF_N) {
    int64_t n = d - i < VF_N ? d - i : VF_N;
    vf_store_f16_n(to + i, vf_load_n(head + i, n), n);
  }
}

// q8_0: the 32 channels of a group share a scale (see quant/caches.py for the rule).  A page of a
// head is its codes, as above, then its scales, f16: of K [d / 32][64], of V [64][d / 32].
LW_INLINE int64_t lw_q8_0_base(int64_t d, int64_t kv_heads, int64_t kvh, uint32_t page) {
  return lw_kv_base(d, kv_heads, kvh, page) / 32 * 34;  // bytes
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

static inline __attribute__((unused)) void lw_k_store_q8_0(const float* head, int64_t d, void* pool,
                                                           int64_t kv_heads, int64_t kvh,
                                                           uint32_t page, uint32_t offset) {
  int8_t* to = (int8_t*)pool + lw_q8_0_base(d, kv_heads, kvh, page) + offset;
  uint16_t* scales = (uint16_t*)(to - offset + d * LW_PAGE) + offset;
  for (int64_t g = 0; g < d / 32; ++g) {
    int8_t codes[32];
    scales[g * LW_PAGE] = lw_q8_0_group(head + 32 * g, codes);
    for (int64_t i = 0; i < 32; ++i) to[(32 * g + i) * LW_PAGE] = codes[i];
  }
}

static inline __attribute__((unused)) void lw_v_store_q8_0(const float* head, int64_t d, void* pool,
                                                           int64_t kv_heads, int64_t kvh,
                                                           uint32_t page, uint32_t offset) {
  int8_t* base = (int8_t*)pool + lw_q8_0_base(d, kv_heads, kvh, page);
  uint16_t* scales = (uint16_t*)(base + d * LW_PAGE) + (int64_t)offset * (d / 32);
  for (int64_t g = 0; g < d / 32; ++g)
    scales[g] = lw_q8_0_group(head + 32 * g, base + (int64_t)offset * d + 32 * g);
}

#endif  // LW_CACHE_H
