// vec.h on AVX2 with FMA and F16C: 8 lanes, masks as vectors of ones.
#ifndef LW_VEC_AVX2_H
#define LW_VEC_AVX2_H

#include <immintrin.h>
#include <stdint.h>

typedef __m256 vf;
typedef __m256i vi;
typedef __m256 vm;
constexpr int VF_N = 8;
constexpr bool VF_SCALES = false;  // vf_scale2 is one instruction

LW_INLINE __m256i lw_lanes_below(int64_t n) {
  __m256i lane = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32((int32_t)n), lane);
}
LW_INLINE vm vm_first(int64_t n) { return _mm256_castsi256_ps(lw_lanes_below(n)); }

LW_INLINE vf vf_set(float a) { return _mm256_set1_ps(a); }
LW_INLINE vf vf_load(const float* p) { return _mm256_loadu_ps(p); }
LW_INLINE vf vf_load_n(const float* p, int64_t n) {
  return _mm256_maskload_ps(p, lw_lanes_below(n));
}
LW_INLINE void vf_store(float* p, vf a) { _mm256_storeu_ps(p, a); }
LW_INLINE void vf_store_n(float* p, vf a, int64_t n) {
  _mm256_maskstore_ps(p, lw_lanes_below(n), a);
}
LW_INLINE vf vf_add(vf a, vf b) { return _mm256_add_ps(a, b); }
LW_INLINE vf vf_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
LW_INLINE vf vf_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
LW_INLINE vf vf_div(vf a, vf b) { return _mm256_div_ps(a, b); }
LW_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
LW_INLINE vf vf_neg(vf a) { return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f)); }
LW_INLINE vf vf_abs(vf a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
LW_INLINE vf vf_sqrt(vf a) { return _mm256_sqrt_ps(a); }
// The instruction returns its second operand for two zeros and for NaN: both orders, then repair.
LW_INLINE vf vf_min(vf a, vf b) {
  vf m = _mm256_or_ps(_mm256_min_ps(a, b), _mm256_min_ps(b, a));
  return _mm256_blendv_ps(m, _mm256_add_ps(a, b), _mm256_cmp_ps(a, b, _CMP_UNORD_Q));
}
LW_INLINE vf vf_max(vf a, vf b) {
  vf m = _mm256_and_ps(_mm256_max_ps(a, b), _mm256_max_ps(b, a));
  return _mm256_blendv_ps(m, _mm256_add_ps(a, b), _mm256_cmp_ps(a, b, _CMP_UNORD_Q));
}
LW_INLINE vf vf_at_least(vf a, vf low) { return _mm256_max_ps(low, a); }
LW_INLINE vf vf_rint(vf a) { return _mm256_round_ps(a, 8 | _MM_FROUND_TO_NEAREST_INT); }
LW_INLINE vf vf_floor(vf a) { return _mm256_round_ps(a, 8 | _MM_FROUND_TO_NEG_INF); }
LW_INLINE vf vf_trunc(vf a) { return _mm256_round_ps(a, 8 | _MM_FROUND_TO_ZERO); }

LW_INLINE vm vf_eq(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
LW_INLINE vm vf_ne(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_NEQ_UQ); }
LW_INLINE vm vf_lt(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
LW_INLINE vm vf_le(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_LE_OQ); }
LW_INLINE vm vf_gt(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_GT_OQ); }
LW_INLINE vm vf_ge(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_GE_OQ); }
LW_INLINE vm vf_isnan(vf a) { return _mm256_cmp_ps(a, a, _CMP_UNORD_Q); }
LW_INLINE vf vf_select(vm m, vf a, vf b) { return _mm256_blendv_ps(b, a, m); }
LW_INLINE vm vm_and(vm a, vm b) { return _mm256_and_ps(a, b); }
LW_INLINE vm vm_or(vm a, vm b) { return _mm256_or_ps(a, b); }
LW_INLINE vm vm_not(vm a) { return _mm256_xor_ps(a, _mm256_castsi256_ps(_mm256_set1_epi32(-1))); }
LW_INLINE uint32_t vm_bits(vm a) { return (uint32_t)_mm256_movemask_ps(a); }
LW_INLINE bool vm_any(vm a) { return _mm256_movemask_ps(a) != 0; }

LW_INLINE vi vi_set(int32_t a) { return _mm256_set1_epi32(a); }
LW_INLINE vi vi_iota(void) { return _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0); }
LW_INLINE vi vi_load(const int32_t* p) { return _mm256_loadu_si256((const __m256i*)p); }
LW_INLINE void vi_store(int32_t* p, vi a) { _mm256_storeu_si256((__m256i*)p, a); }
LW_INLINE vi vi_add(vi a, vi b) { return _mm256_add_epi32(a, b); }
LW_INLINE vi vi_sub(vi a, vi b) { return _mm256_sub_epi32(a, b); }
LW_INLINE vi vi_mul(vi a, vi b) { return _mm256_mullo_epi32(a, b); }
LW_INLINE vi vi_and(vi a, vi b) { return _mm256_and_si256(a, b); }
LW_INLINE vi vi_or(vi a, vi b) { return _mm256_or_si256(a, b); }
LW_INLINE vi vi_xor(vi a, vi b) { return _mm256_xor_si256(a, b); }
template <int S> LW_INLINE vi vi_shl(vi a) { return _mm256_slli_epi32(a, S); }
template <int S> LW_INLINE vi vi_shr(vi a) { return _mm256_srli_epi32(a, S); }
template <int S> LW_INLINE vi vi_sar(vi a) { return _mm256_srai_epi32(a, S); }
LW_INLINE vm vi_eq(vi a, vi b) { return _mm256_castsi256_ps(_mm256_cmpeq_epi32(a, b)); }
LW_INLINE vm vi_gt(vi a, vi b) { return _mm256_castsi256_ps(_mm256_cmpgt_epi32(a, b)); }
LW_INLINE vf vi_as_f(vi a) { return _mm256_castsi256_ps(a); }
LW_INLINE vi vf_as_i(vf a) { return _mm256_castps_si256(a); }
LW_INLINE vi vi_select(vm m, vi a, vi b) { return vf_as_i(vf_select(m, vi_as_f(a), vi_as_f(b))); }
LW_INLINE vi vi_min(vi a, vi b) { return _mm256_min_epi32(a, b); }
LW_INLINE vi vi_max(vi a, vi b) { return _mm256_max_epi32(a, b); }
LW_INLINE vf vi_to_f(vi a) { return _mm256_cvtepi32_ps(a); }
LW_INLINE vi vf_to_i(vf a) { return _mm256_cvtps_epi32(a); }
LW_INLINE vi vf_to_i_trunc(vf a) { return _mm256_cvttps_epi32(a); }
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

// There is no masked load of 16-bit elements: the partial forms go through eight halves of stack.
LW_INLINE __m128i lw_halves_n(const uint16_t* p, int64_t n) {
  uint16_t t[8];
  for (int i = 0; i < 8; ++i) t[i] = i < n ? p[i] : (uint16_t)0;
  return _mm_loadu_si128((const __m128i*)t);
}
LW_INLINE void lw_put_halves_n(uint16_t* p, __m128i a, int64_t n) {
  uint16_t t[8];
  _mm_storeu_si128((__m128i*)t, a);
  for (int i = 0; i < 8; ++i)
    if (i < n) p[i] = t[i];
}
LW_INLINE __m128i lw_narrow(vi a) {  // the low 16 bits of each lane; both halves of `a` are < 2^16
  vi b = _mm256_and_si256(a, _mm256_set1_epi32(0xffff));
  return _mm_packus_epi32(_mm256_castsi256_si128(b), _mm256_extracti128_si256(b, 1));
}
LW_INLINE vi vi_load_i8(const int8_t* p) {
  return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p));
}
LW_INLINE vf vf_load_f16(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
}
LW_INLINE vf vf_load_f16_n(const uint16_t* p, int64_t n) {
  return _mm256_cvtph_ps(lw_halves_n(p, n));
}
LW_INLINE void vf_store_f16(uint16_t* p, vf a) {
  _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(a, 8 | _MM_FROUND_TO_NEAREST_INT));
}
LW_INLINE void vf_store_f16_n(uint16_t* p, vf a, int64_t n) {
  lw_put_halves_n(p, _mm256_cvtps_ph(a, 8 | _MM_FROUND_TO_NEAREST_INT), n);
}
LW_INLINE vi vi_load_u16(const uint16_t* p) {
  return _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p));
}
LW_INLINE vi vi_load_u16_n(const uint16_t* p, int64_t n) {
  return _mm256_cvtepu16_epi32(lw_halves_n(p, n));
}
LW_INLINE void vi_store_u16(uint16_t* p, vi a) { _mm_storeu_si128((__m128i*)p, lw_narrow(a)); }
LW_INLINE void vi_store_u16_n(uint16_t* p, vi a, int64_t n) { lw_put_halves_n(p, lw_narrow(a), n); }
// The halving tree over the lanes, l[i] + l[i + VF_N/2] and so on: the end of the Sums recipe.
LW_INLINE float vf_hadd(vf a) {
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
}
LW_INLINE float vf_hmax(vf a) {
  a = vf_max(a, _mm256_permute2f128_ps(a, a, 1));
  a = vf_max(a, _mm256_permute_ps(a, 0x4e));
  return _mm256_cvtss_f32(vf_max(a, _mm256_permute_ps(a, 0xb1)));
}
LW_INLINE float vf_htop(vf a) {
  __m128 q = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  q = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(q, _mm_shuffle_ps(q, q, 1)));
}

#endif  // LW_VEC_AVX2_H
