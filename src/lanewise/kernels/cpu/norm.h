// Norms and softmax of one row of f32, over the Sums recipe.  `out` may be `x`.
//
//   rms_norm:    r = 1 / sqrt(Sums(x*x) / width + eps);            out = (x * r) * gain
//   layer_norm:  m = Sums(x) / width; v = Sums((x-m)^2) / width; r = 1 / sqrt(v + eps);
//                out = ((x - m) * r) * gain + bias
//   softmax:     m = max(x); e = exp(x - m);                        out = e / Sums(e)
//
// Each operation is rounded once to f32; division and sqrt are the correctly rounded ones.
#ifndef LW_NORM_H
#define LW_NORM_H

#include "math.h"
#include "sum.h"

LW_INLINE float lw_inverse_root(float mean, float eps) {
  return 1.0f / __builtin_sqrtf(mean + eps);
}

// gain may be NULL (then it is not multiplied).
static inline __attribute__((unused)) void lw_rms_norm(const float* x, const float* gain, float eps,
                                                       int64_t width, float* out) {
  float r = lw_inverse_root(lw_sum_squares(x, width) / (float)width, eps);
  vf scale = vf_set(r);
  for (int64_t i = 0; i < width; i += VF_N) {
    int64_t n = width - i < VF_N ? width - i : VF_N;
    vf y = vf_mul(vf_load_n(x + i, n), scale);
    if (gain) y = vf_mul(y, vf_load_n(gain + i, n));
    vf_store_n(out + i, y, n);
  }
}

// gain and bias may be NULL (then they are left out).
static inline __attribute__((unused)) void lw_layer_norm(const float* x, const float* gain,
                                                         const float* bias, float eps,
                                                         int64_t width, float* out) {
  float mean = lw_sum(x, width) / (float)width;
  lw_sum_deviation deviation = {mean};
  float r = lw_inverse_root(lw_sum_map(x, width, deviation) / (float)width, eps);
  vf scale = vf_set(r), centre = vf_set(mean);
  for (int64_t i = 0; i < width; i += VF_N) {
    int64_t n = width - i < VF_N ? width - i : VF_N;
    vf y = vf_mul(vf_sub(vf_load_n(x + i, n), centre), scale);
    if (gain) y = vf_mul(y, vf_load_n(gain + i, n));
    if (bias) y = vf_add(y, vf_load_n(bias + i, n));
    vf_store_n(out + i, y, n);
  }
}

static inline __attribute__((unused)) void lw_softmax(const float* x, int64_t n, float* out) {
  vf m = vf_set(lw_max(x, n));
  for (int64_t i = 0; i < n; i += VF_N) {
    int64_t left = n - i < VF_N ? n - i : VF_N;
    vf_store_n(out + i, vf_exp(vf_sub(vf_load_n(x + i, left), m)), left);
  }
  vf total = vf_set(lw_sum(out, n));
  for (int64_t i = 0; i < n; i += VF_N) {
    int64_t left = n - i < VF_N ? n - i : VF_N;
    vf_store_n(out + i, vf_div(vf_load_n(out + i, left), total), left);
  }
}

#endif  // LW_NORM_H
