// The cache's type, by -DLW_KV=f16, bf16, f32 or q8_0: how blocks of keys and values of a head are
// read as they lie (lw_att_product takes them), or widened to f32 first.
#ifndef LW_ATTENTION_KV_H
#define LW_ATTENTION_KV_H

#include "attention_tile.h"

#define LW_KV_f16 1
#define LW_KV_f32 2
#define LW_KV_q8_0 3
#define LW_KV_bf16 4
#define LW_CAT2(a, b) a##b
#define LW_CAT(a, b) LW_CAT2(a, b)
#define LW_NAME(base) LW_CAT(base, LW_KV)
#if LW_CAT(LW_KV_, LW_KV) == LW_KV_f16
typedef uint16_t lw_kv;
static inline float lw_kv_value(lw_kv a) { return lw_f16_to_f32(a); }
#elif LW_CAT(LW_KV_, LW_KV) == LW_KV_bf16
typedef lw_bf16 lw_kv;
static inline float lw_kv_value(lw_kv a) { return lw_bf16_to_f32((uint16_t)a); }
#elif LW_CAT(LW_KV_, LW_KV) == LW_KV_f32
typedef float lw_kv;
static inline float lw_kv_value(lw_kv a) { return a; }
#elif LW_CAT(LW_KV_, LW_KV) == LW_KV_q8_0
typedef int8_t lw_kv;  // codes
#else
#error "LW_KV must be f16, bf16, f32 or q8_0"
#endif

namespace {

int64_t padded(int64_t d) { return (d + VF_N - 1) / VF_N * VF_N; }

#if LW_CAT(LW_KV_, LW_KV) == LW_KV_q8_0
// A part of keys, [d][span] codes and [d / 32][span] scales -> f32 [d] of stride 64.
LW_INLINE void widen_k(const lw_kv* k, int64_t d, int64_t span, float* to) {
  const uint16_t* scales = (const uint16_t*)(k + d * span);
  for (int64_t g = 0; g < d; g += 32, scales += span)
    for (int64_t c = 0; c < span; c += VF_N) {
      vf s = vf_load_f16(scales + c);
      for (int64_t i = g; i < g + 32; ++i)
        vf_store(to + i * LW_PAGE + c, vf_mul(vi_to_f(vi_load_i8(k + i * span + c)), s));
    }
}
LW_INLINE void widen_scales(const lw_kv* v, int64_t d, int64_t span, float* to) {
  const uint16_t* scales = (const uint16_t*)(v + d * span);
  for (int64_t i = 0; i < span * d / 32; i += VF_N) vf_store(to + i, vf_load_f16(scales + i));
}
// A part of values, [span][d] codes and [span][d / 32] scales -> f32 [span][d].
LW_INLINE void widen_v(const lw_kv* v, int64_t d, int64_t span, float* to) {
  float wide[LW_PAGE * LW_ATT_D / 32];
  widen_scales(v, d, span, wide);
  for (int64_t i = 0; i < span * d; i += 32) {
    vf s = vf_set(wide[i / 32]);
    for (int64_t c = i; c < i + 32; c += VF_N)
      vf_store(to + c, vf_mul(vi_to_f(vi_load_i8(v + c)), s));
  }
}
typedef lw_att_keys Keys;
typedef lw_att_values Values;
Keys keys_of(const lw_kv* k, int64_t d) { return {k, (const uint16_t*)(k + d * LW_PAGE)}; }
Values values_of(const lw_kv* v, int64_t d, float* room) {
  widen_scales(v, d, LW_PAGE, room);
  return {v, room, d};
}
Values rows_from(const Values& v, int64_t i) {
  return {v.p + i * v.d, v.scales + i * (v.d / 32), v.d};
}
#else
// rows x width elements of stride `width` -> f32 of stride `ld`, the tail of a vector +0.
LW_INLINE void widen(const lw_kv* from, int64_t rows, int64_t width, float* to, int64_t ld) {
  for (int64_t r = 0; r < rows; ++r, from += width, to += ld) {
    int64_t c = 0;
    for (; c + VF_N <= width; c += VF_N) vf_store(to + c, lw_att_load(from + c));
    if (c == width) continue;
    float tail[VF_N];
    for (int i = 0; i < VF_N; ++i) tail[i] = c + i < width ? lw_kv_value(from[c + i]) : 0.0f;
    vf_store(to + c, vf_load(tail));
  }
}
LW_INLINE void widen_k(const lw_kv* k, int64_t d, int64_t span, float* to) {
  widen(k, d, span, to, LW_PAGE);
}
LW_INLINE void widen_v(const lw_kv* v, int64_t d, int64_t span, float* to) {
  widen(v, span, d, to, padded(d));
}
typedef lw_att_plain<lw_kv> Keys, Values;
Keys keys_of(const lw_kv* k, int64_t) { return {k, LW_PAGE}; }
Values values_of(const lw_kv* v, int64_t d, float*) { return {v, d}; }
#endif
typedef lw_att_plain<float> Wide;
template <class T> lw_att_plain<T> rows_from(const lw_att_plain<T>& b, int64_t i) {
  return {b.p + i * b.ld, b.ld};
}

}  // namespace

#endif  // LW_ATTENTION_KV_H
