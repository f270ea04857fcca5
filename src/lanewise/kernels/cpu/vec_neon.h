// vec.h on NEON (aarch64): 4 lanes.  Its min and max already propagate NaN and order the zeros.
#ifndef LW_VEC_NEON_H
#define LW_VEC_NEON_H

#include <arm_neon.h>
#include <stdint.h>

typedef float32x4_t vf;
typedef int32x4_t vi;
typedef uint32x4_t vm;
constexpr int VF_N = 4;
constexpr bool VF_SCALES = false;  // vf_scale2 is one instruction

LW_INLINE vi vi_set(int32_t a) { return vdupq_n_s32(a); }
LW_INLINE vi vi_iota(void) {
  const int32_t t[4] = {0, 1, 2, 3};
  return vld1q_s32(t);
}
LW_INLINE vm vm_first(int64_t n) { return vcltq_s32(vi_iota(), vi_set((int32_t)n)); }

LW_INLINE vf vf_set(float a) { return vdupq_n_f32(a); }
LW_INLINE vf vf_load(const float* p) { return vld1q_f32(p); }
LW_INLINE vf vf_load_n(const float* p, int64_t n) {
  float t[4];
  for (int i = 0; i < 4; ++i) t[i] = i < n ? p[i] : 0.0f;
  return vld1q_f32(t);
}
LW_INLINE void vf_store(float* p, vf a) { vst1q_f32(p, a); }
LW_INLINE void vf_store_n(float* p, vf a, int64_t n) {
  float t[4];
  vst1q_f32(t, a);
  for (int i = 0; i < 4; ++i)
    if (i < n) p[i] = t[i];
}
LW_INLINE vf vf_add(vf a, vf b) { return vaddq_f32(a, b); }
LW_INLINE vf vf_sub(vf a, vf b) { return vsubq_f32(a, b); }
LW_INLINE vf vf_mul(vf a, vf b) { return vmulq_f32(a, b); }
LW_INLINE vf vf_div(vf a, vf b) { return vdivq_f32(a, b); }
LW_INLINE vf vf_fma(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }
LW_INLINE vf vf_neg(vf a) { return vnegq_f32(a); }
LW_INLINE vf vf_abs(vf a) { return vabsq_f32(a); }
LW_INLINE vf vf_sqrt(vf a) { return vsqrtq_f32(a); }
LW_INLINE vf vf_min(vf a, vf b) { return vminq_f32(a, b); }
LW_INLINE vf vf_max(vf a, vf b) { return vmaxq_f32(a, b); }
LW_INLINE vf vf_at_least(vf a, vf low) { return vmaxq_f32(low, a); }
LW_INLINE vf vf_rint(vf a) { return vrndnq_f32(a); }
LW_INLINE vf vf_floor(vf a) { return vrndmq_f32(a); }
LW_INLINE vf vf_trunc(vf a) { return vrndq_f32(a); }

LW_INLINE vm vf_eq(vf a, vf b) { return vceqq_f32(a, b); }
LW_INLINE vm vf_ne(vf a, vf b) { return vmvnq_u32(vceqq_f32(a, b)); }
LW_INLINE vm vf_lt(vf a, vf b) { return vcltq_f32(a, b); }
LW_INLINE vm vf_le(vf a, vf b) { return vcleq_f32(a, b); }
LW_INLINE vm vf_gt(vf a, vf b) { return vcgtq_f32(a, b); }
LW_INLINE vm vf_ge(vf a, vf b) { return vcgeq_f32(a, b); }
LW_INLINE vm vf_isnan(vf a) { return vmvnq_u32(vceqq_f32(a, a)); }
LW_INLINE vf vf_select(vm m, vf a, vf b) { return vbslq_f32(m, a, b); }
LW_INLINE vm vm_and(vm a, vm b) { return vandq_u32(a, b); }
LW_INLINE vm vm_or(vm a, vm b) { return vorrq_u32(a, b); }
LW_INLINE vm vm_not(vm a) { return vmvnq_u32(a); }
LW_INLINE uint32_t vm_bits(vm a) {
  const uint32_t t[4] = {1, 2, 4, 8};
  return vaddvq_u32(vandq_u32(a, vld1q_u32(t)));
}
LW_INLINE bool vm_any(vm a) { return vmaxvq_u32(a) != 0; }

LW_INLINE vi vi_load(const int32_t* p) { return vld1q_s32(p); }
LW_INLINE void vi_store(int32_t* p, vi a) { vst1q_s32(p, a); }
LW_INLINE vi vi_add(vi a, vi b) { return vaddq_s32(a, b); }
LW_INLINE vi vi_sub(vi a, vi b) { return vsubq_s32(a, b); }
LW_INLINE vi vi_mul(vi a, vi b) { return vmulq_s32(a, b); }
LW_INLINE vi vi_and(vi a, vi b) { return vandq_s32(a, b); }
LW_INLINE vi vi_or(vi a, vi b) { return vorrq_s32(a, b); }
LW_INLINE vi vi_xor(vi a, vi b) { return veorq_s32(a, b); }
template <int S> LW_INLINE vi vi_shl(vi a) { return vshlq_n_s32(a, S); }
template <int S> LW_INLINE vi vi_shr(vi a) {
  return vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(a), S));
}
template <int S> LW_INLINE vi vi_sar(vi a) { return vshrq_n_s32(a, S); }
LW_INLINE vm vi_eq(vi a, vi b) { return vceqq_s32(a, b); }
LW_INLINE vm vi_gt(vi a, vi b) { return vcgtq_s32(a, b); }
LW_INLINE vi vi_select(vm m, vi a, vi b) { return vbslq_s32(m, a, b); }
LW_INLINE vi vi_min(vi a, vi b) { return vminq_s32(a, b); }
LW_INLINE vi vi_max(vi a, vi b) { return vmaxq_s32(a, b); }
LW_INLINE vf vi_to_f(vi a) { return vcvtq_f32_s32(a); }
LW_INLINE vi vf_to_i(vf a) { return vcvtnq_s32_f32(a); }
LW_INLINE vi vf_to_i_trunc(vf a) { return vcvtq_s32_f32(a); }
LW_INLINE vi vf_as_i(vf a) { return vreinterpretq_s32_f32(a); }
LW_INLINE vf vi_as_f(vi a) { return vreinterpretq_f32_s32(a); }
// p * 2^n for a whole n in [-252, 254], one rounding (a NaN stays one): two exact-enough steps.
LW_INLINE vf vf_scale2(vf p, vf n) {
  vi i = vf_to_i(n), half = vi_sar<1>(i), bias = vi_set(127);
  vf low = vi_as_f(vi_shl<23>(vi_add(half, bias)));
  vf high = vi_as_f(vi_shl<23>(vi_add(vi_sub(i, half), bias)));
  return vf_mul(vf_mul(p, low), high);
}
LW_INLINE vf vf_scale2_normal(vf p, vf n) {
  return vi_as_f(vi_add(vf_as_i(p), vi_shl<23>(vf_to_i(n))));
}

LW_INLINE uint16x4_t lw_halves_n(const uint16_t* p, int64_t n) {
  uint16_t t[4];
  for (int i = 0; i < 4; ++i) t[i] = i < n ? p[i] : (uint16_t)0;
  return vld1_u16(t);
}
LW_INLINE void lw_put_halves_n(uint16_t* p, uint16x4_t a, int64_t n) {
  uint16_t t[4];
  vst1_u16(t, a);
  for (int i = 0; i < 4; ++i)
    if (i < n) p[i] = t[i];
}
LW_INLINE uint16x4_t lw_narrow(vi a) { return vmovn_u32(vreinterpretq_u32_s32(a)); }
LW_INLINE vi vi_load_i8(const int8_t* p) {
  int32_t four;
  __builtin_memcpy(&four, p, 4);
  return vmovl_s16(vget_low_s16(vmovl_s8(vcreate_s8((uint32_t)four))));
}
LW_INLINE vf vf_load_f16(const uint16_t* p) {
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}
LW_INLINE vf vf_load_f16_n(const uint16_t* p, int64_t n) {
  return vcvt_f32_f16(vreinterpret_f16_u16(lw_halves_n(p, n)));
}
LW_INLINE void vf_store_f16(uint16_t* p, vf a) {
  vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(a)));
}
LW_INLINE void vf_store_f16_n(uint16_t* p, vf a, int64_t n) {
  lw_put_halves_n(p, vreinterpret_u16_f16(vcvt_f16_f32(a)), n);
}
LW_INLINE vi vi_load_u16(const uint16_t* p) {
  return vreinterpretq_s32_u32(vmovl_u16(vld1_u16(p)));
}
LW_INLINE vi vi_load_u16_n(const uint16_t* p, int64_t n) {
  return vreinterpretq_s32_u32(vmovl_u16(lw_halves_n(p, n)));
}
LW_INLINE void vi_store_u16(uint16_t* p, vi a) { vst1_u16(p, lw_narrow(a)); }
LW_INLINE void vi_store_u16_n(uint16_t* p, vi a, int64_t n) { lw_put_halves_n(p, lw_narrow(a), n); }
// The halving tree over the lanes, l[i] + l[i + VF_N/2] and so on: the end of the Sums recipe.
LW_INLINE float vf_hadd(vf a) {
  float32x2_t h = vadd_f32(vget_low_f32(a), vget_high_f32(a));
  return vget_lane_f32(h, 0) + vget_lane_f32(h, 1);
}
LW_INLINE float vf_hmax(vf a) { return vmaxvq_f32(a); }
LW_INLINE float vf_htop(vf a) { return vmaxvq_f32(a); }

#endif  // LW_VEC_NEON_H
