// Recurrent layers, experts, 4-bit products, angles: lanes are outputs, sums are fma chains
// ascending (products: a new chain every 512 of K, chains added ascending).
#ifndef LW_CALLS_STEP_H
#define LW_CALLS_STEP_H

template <int D> LW_INLINE vf lw_lanes(const uint8_t* p, int64_t i, int64_t n) {
  if (D == 0) return vf_load_n((const float*)p + i, n);
  if (D == 1) return vf_load_f16_n((const uint16_t*)p + i, n);
  if (D == 2) return vf_load_bf16_n((const uint16_t*)p + i, n);
  return D == 4 ? vf_load_f8_e4m3_n(p + i, n) : vf_load_f8_e5m2_n(p + i, n);
}

// ---- a gated delta recurrence: one head of one sequence at a time, its state turned [K][V] ----

struct LwDelta {
  const float *q, *k, *v, *alpha;  // of one token and head; alpha of one channel or of all
  int64_t alpha_step;              // 0: one number
  float beta;
  bool before;
};

LW_INLINE void lw_delta_step(const LwDelta* d, float* s, int64_t width, int64_t inner, float* out) {
  for (int64_t j = 0; j < width; j += VF_N) {
    const int64_t left = lw_least(width - j, VF_N);
    vf u = vf_zero(), o = vf_zero();
    for (int64_t i = 0; i < inner; ++i) {
      vf x = vf_load_n(s + i * width + j, left);
      if (d->before) x = vf_mul(vf_set(d->alpha[i * d->alpha_step]), x);
      u = vf_fma(x, vf_set(d->k[i]), u);
    }
    const vf c = vf_mul(vf_set(d->beta), vf_sub(vf_load_n(d->v + j, left), u));
    for (int64_t i = 0; i < inner; ++i) {
      vf x = vf_mul(vf_set(d->alpha[i * d->alpha_step]), vf_load_n(s + i * width + j, left));
      x = vf_fma(c, vf_set(d->k[i]), x);
      vf_store_n(s + i * width + j, x, left);
      o = vf_fma(x, vf_set(d->q[i]), o);
    }
    vf_store_n(out + j, o, left);
  }
}

LW_INLINE void lw_delta_head(const LwCall* k, int64_t slot, int64_t h, int64_t at, int64_t count) {
  const int64_t heads = k->d[1], width = k->d[2], inner = k->d[3];
  const int64_t a = k->d[5], b = k->d[6];  // ranks of the gates
  float* state = (float*)k->out[0] + (slot * heads + h) * width * inner;
  float* s = (float*)k->scratch;
  for (int64_t j = 0; j < width; ++j)
    for (int64_t i = 0; i < inner; ++i) s[i * width + j] = state[j * inner + i];
  for (int64_t t = at; t < at + count; ++t) {
    const int64_t row = t * heads + h;
    const float* alpha = lw_floats(k, 4) + (a == 1 ? t : a == 2 ? row : row * inner);
    const LwDelta d = {lw_floats(k, 1) + row * inner, lw_floats(k, 2) + row * inner,
                       lw_floats(k, 3) + row * width, alpha, a == 3 ? 1 : 0,
                       lw_floats(k, 5)[b == 1 ? t : row], k->d[7] != 0};
    lw_delta_step(&d, s, width, inner, (float*)k->out[1] + row * width);
  }
  for (int64_t j = 0; j < width; ++j)
    for (int64_t i = 0; i < inner; ++i) state[j * inner + i] = s[i * width + j];
}

// Heads of sequences shared out; rows past the last sequence's are zeros.
template <void (*Head)(const LwCall*, int64_t, int64_t, int64_t, int64_t)>
LW_INLINE void lw_delta_heads(const LwCall* k) {
  const int64_t slots = k->d[0], heads = k->d[1], width = k->d[2], rows = k->d[4];
  const uint32_t* extents = lw_words(k, 6);
  const lw_range s = lw_split(slots * heads, k->t, k->T);
  int64_t at = 0;
  for (int64_t slot = 0; slot < slots; ++slot) {
    const int64_t count = lw_least(extents[slot], rows - at);
    for (int64_t h = 0; h < heads && count; ++h) {
      const int64_t item = slot * heads + h;
      if (s.begin <= item && item < s.end) Head(k, slot, h, at, count);
    }
    at += count;
  }
  const lw_range rest = lw_split(rows - at, k->t, k->T);
  const int64_t each = 4 * heads * width;
  lw_zero_bytes(k->out[1] + (at + rest.begin) * each, (rest.end - rest.begin) * each);
}

LW_INLINE void lw_call_linear_attention(const LwCall* k) { lw_delta_heads<lw_delta_head>(k); }

LW_INLINE void lw_call_conv_ring(const LwCall* k) {
  const int64_t slots = k->d[0], kept = k->d[1], width = k->d[2], rows = k->d[3];
  const uint32_t* extents = lw_words(k, 3);
  const float *x = lw_floats(k, 1), *w = lw_floats(k, 2);
  float *state = (float*)k->out[0], *out = (float*)k->out[1];
  const lw_range s = lw_split(width, k->t, k->T);
  int64_t at = 0;
  for (int64_t slot = 0; slot < slots; ++slot) {
    const int64_t count = lw_least(extents[slot], rows - at);
    float* ring = state + slot * kept * width;
    for (int64_t c = s.begin; c < s.end; ++c) {
      for (int64_t i = 0; i < count; ++i) {
        float sum = 0;
        for (int64_t j = 0; j <= kept; ++j) {
          const int64_t from = i + j - kept;  // of this step's rows; below 0: kept ones
          const float v = from < 0 ? ring[(from + kept) * width + c] : x[(at + from) * width + c];
          sum = lw_fmaf(w[j * width + c], v, sum);
        }
        out[(at + i) * width + c] = sum;
      }
      for (int64_t j = 0; j < kept && count; ++j) {
        const int64_t from = count + j - kept;
        ring[j * width + c] =
            from < 0 ? ring[(from + kept) * width + c] : x[(at + from) * width + c];
      }
    }
    at += count;
  }
  for (; at < rows; ++at)
    for (int64_t c = s.begin; c < s.end; ++c) out[at * width + c] = 0;
}

// ---- experts ----

// R rows of x times columns j.. of one [K, N] matrix.
template <int D, int R>
LW_INLINE void lw_expert(const LwCall* k, const uint8_t* w, int64_t row, int64_t j, int64_t left) {
  const int64_t inner = k->d[1], n = k->d[3];
  const float* x = lw_floats(k, 0) + row * inner;
  vf total[R];
  for (int64_t q0 = 0; q0 < inner; q0 += 512) {
    vf chain[R];
    for (int r = 0; r < R; ++r) chain[r] = vf_zero();
    for (int64_t q = q0; q < lw_least(q0 + 512, inner); ++q) {
      const vf lanes = lw_lanes<D>(w, q * n + j, left);
      for (int r = 0; r < R; ++r) chain[r] = vf_fma(lanes, vf_set(x[r * inner + q]), chain[r]);
    }
    for (int r = 0; r < R; ++r) total[r] = q0 ? vf_add(total[r], chain[r]) : chain[r];
  }
  for (int r = 0; r < R; ++r)
    vf_store_n((float*)k->out[0] + (row + r) * n + j, total[r], left);
}

template <int D> LW_INLINE void lw_grouped(const LwCall* k) {
  const int64_t rows = k->d[0], inner = k->d[1], experts = k->d[2], n = k->d[3];
  const uint32_t* counts = lw_words(k, 2);
  const lw_range s = lw_columns(n, 64, k->t, k->T);
  int64_t at = 0;
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t end = at + lw_least(counts[e], rows - at);
    const uint8_t* w = k->in[1] + e * inner * n * (D == 0 ? 4 : D > 3 ? 1 : 2);
    for (int64_t j = s.begin; j < s.end && at < end; j += VF_N) {
      const int64_t left = lw_least(s.end - j, VF_N);
      int64_t row = at;
      for (; row + 4 <= end; row += 4) lw_expert<D, 4>(k, w, row, j, left);
      for (; row < end; ++row) lw_expert<D, 1>(k, w, row, j, left);
    }
    at = end;
  }
  for (; at < rows; ++at)
    lw_zero_bytes(k->out[0] + 4 * (at * n + s.begin), 4 * (s.end - s.begin));
}

LW_INLINE void lw_call_grouped_matmul(const LwCall* k) {
  if (k->d[4] == 0) lw_grouped<0>(k);
  if (k->d[4] == 1) lw_grouped<1>(k);
  if (k->d[4] == 2) lw_grouped<2>(k);
  if (k->d[4] == 4) lw_grouped<4>(k);
  if (k->d[4] == 5) lw_grouped<5>(k);
}

LW_INLINE void lw_call_route(const LwCall* k) {
  if (k->t) return;
  const int64_t rows = k->d[0] * k->d[1], each = k->d[1], experts = k->d[2];
  const uint32_t* ids = lw_words(k, 0);
  uint32_t *counts = (uint32_t*)k->out[0], *tokens = (uint32_t*)k->out[1];
  uint32_t *permutation = (uint32_t*)k->out[2], *next = (uint32_t*)k->scratch;
  for (int64_t e = 0; e < experts; ++e) counts[e] = 0;
  for (int64_t i = 0; i < rows; ++i)
    if (ids[i] < experts) ++counts[ids[i]];
  uint32_t sum = 0;
  for (int64_t e = 0; e < experts; ++e) {
    next[e] = sum;
    sum += counts[e];
  }
  for (int64_t i = sum; i < rows; ++i) tokens[i] = permutation[i] = LW_ABSENT;
  for (int64_t i = 0; i < rows; ++i) {
    if (ids[i] >= experts) continue;
    const uint32_t at = next[ids[i]]++;
    permutation[at] = (uint32_t)i;
    tokens[at] = (uint32_t)(i / each);
  }
}

LW_INLINE void lw_call_combine(const LwCall* k) {
  const int64_t rows = k->d[0], n = k->d[1], tokens = k->d[2], each = k->d[3];
  const uint32_t* permutation = lw_words(k, 2);
  float* out = (float*)k->out[0];
  const lw_range s = lw_split(n, k->t, k->T);
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t j = s.begin; j < s.end; ++j) out[t * n + j] = 0;
  for (int64_t i = 0; i < rows; ++i) {
    const uint32_t p = permutation[i];
    if (p >= tokens * each) continue;
    const float weight = lw_floats(k, 1)[p];
    float* to = out + p / each * n;
    for (int64_t j = s.begin; j < s.end; ++j)
      to[j] = lw_fmaf(weight, lw_floats(k, 0)[i * n + j], to[j]);
  }
}

// ---- 4-bit codes, [K, N] flat, eight in a word ----

LW_INLINE float lw_int4(const LwCall* k, int64_t i) {
  const float code = (float)(lw_words(k, 1)[i >> 3] >> (i & 7) * 4 & 15);
  const float scale = lw_f16_to_f32(((const uint16_t*)k->in[2])[i >> 7]);
  const float zero = lw_f16_to_f32(((const uint16_t*)k->in[3])[i >> 7]);
  return scale == 0 ? zero : (code - zero) * scale;
}

template <int R>
LW_INLINE void lw_int4_rows(const LwCall* k, int64_t row, int64_t j, int64_t left) {
  const int64_t inner = k->d[1], n = k->d[2];
  const float* x = lw_floats(k, 0) + row * inner;
  vf total[R];
  for (int64_t q0 = 0; q0 < inner; q0 += 512) {
    vf chain[R];
    for (int r = 0; r < R; ++r) chain[r] = vf_zero();
    for (int64_t q = q0; q < lw_least(q0 + 512, inner); ++q) {
      float w[VF_N];
      for (int64_t i = 0; i < left; ++i) w[i] = lw_int4(k, q * n + j + i);
      const vf lanes = vf_load_n(w, left);
      for (int r = 0; r < R; ++r) chain[r] = vf_fma(lanes, vf_set(x[r * inner + q]), chain[r]);
    }
    for (int r = 0; r < R; ++r) total[r] = q0 ? vf_add(total[r], chain[r]) : chain[r];
  }
  for (int r = 0; r < R; ++r)
    vf_store_n((float*)k->out[0] + (row + r) * n + j, total[r], left);
}

LW_INLINE void lw_call_int4_matmul(const LwCall* k) {
  const lw_range s = lw_columns(k->d[2], 16, k->t, k->T);
  for (int64_t j = s.begin; j < s.end; j += VF_N) {
    const int64_t left = lw_least(s.end - j, VF_N);
    int64_t row = 0;
    for (; row + 4 <= k->d[0]; row += 4) lw_int4_rows<4>(k, row, j, left);
    for (; row < k->d[0]; ++row) lw_int4_rows<1>(k, row, j, left);
  }
}

// ---- angles, in double ----

LW_INLINE double lw_ln(double x) {  // x > 0, normal: 2 artanh((m - 1) / (m + 1)) + e ln 2
  uint64_t bits;
  __builtin_memcpy(&bits, &x, 8);
  int64_t e = (int64_t)(bits >> 52) - 1023;
  bits = (bits & 0xfffffffffffffull) | 1023ull << 52;
  double m;
  __builtin_memcpy(&m, &bits, 8);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++e;
  }
  const double s = (m - 1) / (m + 1), z = s * s;
  double sum = 0;
  for (int i = 23; i >= 1; i -= 2) sum = sum * z + 1.0 / i;
  return (double)e * 0.6931471805599453 + 2 * s * sum;
}

LW_INLINE double lw_e_to(double y) {  // |y| < 700: 2^n times the series of the rest
  const double scaled = y * 1.4426950408889634;
  const int64_t n = (int64_t)(scaled + (scaled < 0 ? -0.5 : 0.5));
  const double r = (y - (double)n * 0.693147180369123816490) - (double)n * 1.90821492927058770e-10;
  double sum = 1;
  for (int i = 14; i >= 1; --i) sum = sum * r / i + 1;
  const uint64_t bits = (uint64_t)(n + 1023) << 52;
  double power;
  __builtin_memcpy(&power, &bits, 8);
  return sum * power;
}

// Cosine and sine of 0 <= a < 2^33 (NaN otherwise): a less a multiple of
// pi/2 in three parts, then the series.
LW_INLINE void lw_cos_sin(double a, float* cosine, float* sine) {
  if (!(a >= 0 && a < 8589934592.0)) {
    *cosine = *sine = __builtin_nanf("");
    return;
  }
  const int64_t n = (int64_t)(a * 0.6366197723675814 + 0.5);
  const double q = (double)n;
  const double rough = (a - q * 1.57079632673412561417) - q * 6.07710050630396597660e-11;
  const double r = rough - q * 2.02226624879595063154e-21;
  const double z = -r * r;
  double s = 1, c = 1;
  for (int i = 17; i >= 3; i -= 2) s = s * z / (i * (i - 1)) + 1;
  for (int i = 18; i >= 2; i -= 2) c = c * z / (i * (i - 1)) + 1;
  s *= r;
  const int64_t turn = n & 3;
  *cosine = (float)(turn == 0 ? c : turn == 1 ? -s : turn == 2 ? -c : s);
  *sine = (float)(turn == 0 ? s : turn == 1 ? c : turn == 2 ? -s : -c);
}

LW_INLINE void lw_call_rope_angles(const LwCall* k) {
  const int64_t rotary = k->d[1], half = rotary / 2;
  const double base = lw_ln((double)*lw_floats(k, 1));
  const lw_range s = lw_split(k->live, k->t, k->T);
  for (int64_t i = 0; i < half; ++i) {
    double frequency = lw_e_to(-base * (double)i / (double)half);
    if (k->d[2]) frequency /= (double)lw_floats(k, 2)[i];
    for (int64_t row = s.begin; row < s.end; ++row) {
      float* out = (float*)k->out[0] + row * rotary + i;
      lw_cos_sin((double)lw_words(k, 0)[row] * frequency, out, out + half);
    }
  }
}

#endif  // LW_CALLS_STEP_H
