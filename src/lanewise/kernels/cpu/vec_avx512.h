// vec.h on AVX-512 (F, BW, DQ, VL): 16 lanes, masks in mask registers.
#ifndef LW_VEC_AVX512_H
#define LW_VEC_AVX512_H

#include <immintrin.h>
#include <stdint.h>

typedef __m512 vf;
typedef __m512i vi;
typedef __mmask16 vm;
constexpr int VF_N = 16;
constexpr bool VF_SCALES = true;  // vf_scale2 is one instruction

LW_INLINE vm vm_first(int64_t n) { return (vm)((1u << (uint32_t)n) - 1u); }

LW_INLINE vf vf_set(float a) { return _mm512_set1_ps(a); }
LW_INLINE vf vf_load(const float* p) { return _mm512_loadu_ps(p); }
LW_INLINE vf vf_load_n(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(vm_first(n), p); }
LW_INLINE void vf_store(float* p, vf a) { _mm512_storeu_ps(p, a); }
LW_INLINE void vf_store_n(float* p, vf a, int64_t n) { _mm512_mask_storeu_ps(p, vm_first(n), a); }
LW_INLINE vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
LW_INLINE vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
LW_INLINE vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
LW_INLINE vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
LW_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
LW_INLINE vf vf_neg(vf a) { return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f)); }
LW_INLINE vf vf_abs(vf a) { return _mm512_andnot_ps(_mm512_set1_ps(-0.0f), a); }
LW_INLINE vf vf_sqrt(vf a) { return _mm512_sqrt_ps(a); }
// The instruction returns its second operand for two zeros and for NaN: both orders, then repair.
LW_INLINE vf vf_min(vf a, vf b) {
  vf m = _mm512_or_ps(_mm512_min_ps(a, b), _mm512_min_ps(b, a));
  return _mm512_mask_add_ps(m, _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q), a, b);
}
LW_INLINE vf vf_max(vf a, vf b) {
  vf m = _mm512_and_ps(_mm512_max_ps(a, b), _mm512_max_ps(b, a));
  return _mm512_mask_add_ps(m, _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q), a, b);
}
LW_INLINE vf vf_at_least(vf a, vf low) { return _mm512_max_ps(low, a); }
LW_INLINE vf vf_rint(vf a) { return _mm512_roundscale_ps(a, 8 | _MM_FROUND_TO_NEAREST_INT); }
LW_INLINE vf vf_floor(vf a) { return _mm512_roundscale_ps(a, 8 | _MM_FROUND_TO_NEG_INF); }
LW_INLINE vf vf_trunc(vf a) { return _mm512_roundscale_ps(a, 8 | _MM_FROUND_TO_ZERO); }

LW_INLINE vm vf_eq(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
LW_INLINE vm vf_ne(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_NEQ_UQ); }
LW_INLINE vm vf_lt(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
LW_INLINE vm vf_le(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ); }
LW_INLINE vm vf_gt(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
LW_INLINE vm vf_ge(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
LW_INLINE vm vf_isnan(vf a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }
LW_INLINE vf vf_select(vm m, vf a, vf b) { return _mm512_mask_blend_ps(m, b, a); }
LW_INLINE vm vm_and(vm a, vm b) { return (vm)(a & b); }
LW_INLINE vm vm_or(vm a, vm b) { return (vm)(a | b); }
LW_INLINE vm vm_not(vm a) { return (vm)~a; }
LW_INLINE uint32_t vm_bits(vm a) { return a; }
LW_INLINE bool vm_any(vm a) { return a != 0; }

LW_INLINE vi vi_set(int32_t a) { return _mm512_set1_epi32(a); }
LW_INLINE vi vi_iota(void) {
  return _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
}
LW_INLINE vi vi_load(const int32_t* p) { return _mm512_loadu_si512((const void*)p); }
LW_INLINE void vi_store(int32_t* p, vi a) { _mm512_storeu_si512((void*)p, a); }
LW_INLINE vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
LW_INLINE vi vi_sub(vi a, vi b) { return _mm512_sub_epi32(a, b); }
LW_INLINE vi vi_mul(vi a, vi b) { return _mm512_mullo_epi32(a, b); }
LW_INLINE vi vi_and(vi a, vi b) { return _mm512_and_si512(a, b); }
LW_INLINE vi vi_or(vi a, vi b) { return _mm512_or_si512(a, b); }
LW_INLINE vi vi_xor(vi a, vi b) { return _mm512_xor_si512(a, b); }
template <int S> LW_INLINE vi vi_shl(vi a) { return _mm512_slli_epi32(a, S); }
template <int S> LW_INLINE vi vi_shr(vi a) { return _mm512_srli_epi32(a, S); }
template <int S> LW_INLINE vi vi_sar(vi a) { return _mm512_srai_epi32(a, S); }
LW_INLINE vm vi_eq(vi a, vi b) { return _mm512_cmpeq_epi32_mask(a, b); }
LW_INLINE vm vi_gt(vi a, vi b) { return _mm512_cmpgt_epi32_mask(a, b); }
LW_INLINE vi vi_select(vm m, vi a, vi b) { return _mm512_mask_blend_epi32(m, b, a); }
LW_INLINE vi vi_min(vi a, vi b) { return _mm512_min_epi32(a, b); }
LW_INLINE vi vi_max(vi a, vi b) { return _mm512_max_epi32(a, b); }
LW_INLINE vf vi_to_f(vi a) { return _mm512_cvtepi32_ps(a); }
LW_INLINE vi vf_to_i(vf a) { return _mm512_cvtps_epi32(a); }
LW_INLINE vi vf_to_i_trunc(vf a) { return _mm512_cvttps_epi32(a); }
LW_INLINE vi vf_as_i(vf a) { return _mm512_castps_si512(a); }
LW_INLINE vf vi_as_f(vi a) { return _mm512_castsi512_ps(a); }
// p * 2^n for a whole n in [-252, 254], one rounding (a NaN stays one).
LW_INLINE vf vf_scale2(vf p, vf n) { return _mm512_scalef_ps(p, n); }
LW_INLINE vf vf_scale2_normal(vf p, vf n) { return _mm512_scalef_ps(p, n); }

LW_INLINE vi vi_load_i8(const int8_t* p) {
  return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p));
}
LW_INLINE vf vf_load_f16(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
}
LW_INLINE vf vf_load_f16_n(const uint16_t* p, int64_t n) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(vm_first(n), p));
}
LW_INLINE void vf_store_f16(uint16_t* p, vf a) {
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph(a, 8 | _MM_FROUND_TO_NEAREST_INT));
}
LW_INLINE void vf_store_f16_n(uint16_t* p, vf a, int64_t n) {
  __m256i halves = _mm512_cvtps_ph(a, 8 | _MM_FROUND_TO_NEAREST_INT);
  __asm__ volatile("" : "+x"(halves));  // as vi_store_u16_n
  _mm256_mask_storeu_epi16(p, vm_first(n), halves);
}
LW_INLINE vi vi_load_u16(const uint16_t* p) {
  return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p));
}
LW_INLINE vi vi_load_u16_n(const uint16_t* p, int64_t n) {
  return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(vm_first(n), p));
}
LW_INLINE void vi_store_u16(uint16_t* p, vi a) {
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(a));
}
LW_INLINE void vi_store_u16_n(uint16_t* p, vi a, int64_t n) {
  // Kept apart from the store: folded into one masked down-converting store (vpmovdw), some
  // processors write masked-out bytes back, and the neighbour's thread loses what it stored.
  __m256i halves = _mm512_cvtepi32_epi16(a);
  __asm__ volatile("" : "+x"(halves));
  _mm256_mask_storeu_epi16(p, vm_first(n), halves);
}
// The halving tree over the lanes, l[i] + l[i + VF_N/2] and so on: the end of the Sums recipe.
LW_INLINE float vf_hadd(vf a) {
  __m256 h = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
}
LW_INLINE float vf_hmax(vf a) {
  a = vf_max(a, _mm512_shuffle_f32x4(a, a, 0x4e));
  a = vf_max(a, _mm512_shuffle_f32x4(a, a, 0xb1));
  a = vf_max(a, _mm512_permute_ps(a, 0x4e));
  return _mm512_cvtss_f32(vf_max(a, _mm512_permute_ps(a, 0xb1)));
}
LW_INLINE float vf_htop(vf a) {
  __m256 h = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
  __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(q, _mm_shuffle_ps(q, q, 1)));
}

#endif  // LW_VEC_AVX512_H
