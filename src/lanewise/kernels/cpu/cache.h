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

#endif  // LW_CACHE_H
