// Ranks, masks and draws over rows of weights: by (value descending, index ascending), NaN last.
//
// A heap of indices gives the largest one by one, so that a short rank costs one look at the row.
// Totals and running sums are plain f32 sums, ascending by index (masks: by rank).
#ifndef LW_CALLS_RANK_H
#define LW_CALLS_RANK_H

LW_INLINE bool lw_before(const float* x, uint32_t a, uint32_t b) {
  const float u = x[a], v = x[b];
  if (u != u || v != v) return (u != u) == (v != v) ? a < b : v != v;
  return u > v || (u == v && a < b);
}

LW_INLINE void lw_sift(const float* x, uint32_t* heap, int64_t n, int64_t i) {
  const uint32_t mine = heap[i];
  for (int64_t c = 2 * i + 1; c < n; c = 2 * i + 1) {
    if (c + 1 < n && lw_before(x, heap[c + 1], heap[c])) ++c;
    if (!lw_before(x, heap[c], mine)) break;
    heap[i] = heap[c];
    i = c;
  }
  heap[i] = mine;
}

LW_INLINE void lw_heap(const float* x, uint32_t* heap, int64_t n) {
  for (int64_t i = 0; i < n; ++i) heap[i] = (uint32_t)i;
  for (int64_t i = n / 2 - 1; i >= 0; --i) lw_sift(x, heap, n, i);
}

// Take the first of a heap of n entries.
LW_INLINE uint32_t lw_pop(const float* x, uint32_t* heap, int64_t n) {
  const uint32_t first = heap[0];
  heap[0] = heap[n - 1];
  lw_sift(x, heap, n - 1, 0);
  return first;
}

LW_INLINE lw_range lw_call_rows(const LwCall* k) {
  return lw_split(k->d[0] ? k->live * k->d[0] : 1, k->t, k->T);
}

LW_INLINE void lw_call_top_k_mask(const LwCall* k) {
  const int64_t n = k->d[1], most = k->d[2];
  uint32_t* heap = (uint32_t*)k->scratch;
  const lw_range s = lw_call_rows(k);
  for (int64_t row = s.begin; row < s.end; ++row) {
    const float* x = lw_floats(k, 0) + row * n;
    float* out = (float*)k->out[0] + row * n;
    lw_zero_bytes((uint8_t*)out, 4 * n);
    lw_heap(x, heap, n);
    for (int64_t i = 0; i < most; ++i) {
      const uint32_t at = lw_pop(x, heap, n - i);
      out[at] = x[at];
    }
  }
}

LW_INLINE void lw_call_top_k(const LwCall* k) {
  const int64_t n = k->d[1], most = k->d[2];
  uint32_t* heap = (uint32_t*)k->scratch;
  const lw_range s = lw_call_rows(k);
  for (int64_t row = s.begin; row < s.end; ++row) {
    const float* x = lw_floats(k, 0) + row * n;
    lw_heap(x, heap, n);
    for (int64_t i = 0; i < most; ++i) {
      const uint32_t at = lw_pop(x, heap, n - i);
      ((float*)k->out[0])[row * most + i] = x[at];
      ((uint32_t*)k->out[1])[row * most + i] = at;
    }
  }
}

LW_INLINE float lw_total(const float* x, int64_t n) {
  float total = 0;
  for (int64_t i = 0; i < n; ++i) total += x[i];
  return total;
}

LW_INLINE void lw_call_top_p_mask(const LwCall* k) {
  const int64_t n = k->d[1];
  uint32_t* heap = (uint32_t*)k->scratch;
  const lw_range s = lw_call_rows(k);
  for (int64_t row = s.begin; row < s.end; ++row) {
    const float* x = lw_floats(k, 0) + row * n;
    float* out = (float*)k->out[0] + row * n;
    const float bound = k->f[0] * lw_total(x, n);
    lw_zero_bytes((uint8_t*)out, 4 * n);
    lw_heap(x, heap, n);
    float running = 0;
    for (int64_t i = 0; i < n && (i == 0 || running < bound); ++i) {
      const uint32_t at = lw_pop(x, heap, n - i);
      out[at] = x[at];
      running += x[at];
    }
  }
}

LW_INLINE void lw_call_min_p_mask(const LwCall* k) {
  const int64_t n = k->d[1];
  const lw_range s = lw_call_rows(k);
  for (int64_t row = s.begin; row < s.end; ++row) {
    const float* x = lw_floats(k, 0) + row * n;
    float* out = (float*)k->out[0] + row * n;
    uint32_t top = 0;
    for (int64_t i = 1; i < n; ++i)
      if (lw_before(x, (uint32_t)i, top)) top = (uint32_t)i;
    const float bound = k->f[0] * x[top];
    for (int64_t i = 0; i < n; ++i) out[i] = x[i] >= bound ? x[i] : 0.0f;
  }
}

LW_INLINE void lw_call_sample_categorical(const LwCall* k) {
  const int64_t n = k->d[1];
  const lw_range s = lw_split(k->live, k->t, k->T);
  for (int64_t row = s.begin; row < s.end; ++row) {
    const float* x = lw_floats(k, 0) + row * n;
    const float total = lw_total(x, n), most = 0.999999940395355224609375f;
    float draw = lw_floats(k, 1)[row];
    draw = draw > 0 ? (draw < most ? draw : most) : 0.0f;
    uint32_t token = LW_ABSENT;
    if (total > 0 && total < __builtin_inff()) {
      const float target = draw * total;
      float running = 0;
      bool found = false;
      for (int64_t i = 0; i < n && !found; ++i) {
        running += x[i];
        if (x[i] != 0) token = (uint32_t)i;
        found = running > target;
      }
    }
    ((uint32_t*)k->out[0])[row] = token;
  }
}

LW_INLINE void lw_call_count_tokens(const LwCall* k) {
  if (k->t) return;
  const int64_t vocabulary = k->d[0], filled = lw_least(*lw_words(k, 2), k->d[1]);
  uint32_t* counts = (uint32_t*)k->out[0];
  for (int64_t i = 0; i < vocabulary; ++i) counts[i] = 0;
  for (int64_t i = 0; i < filled; ++i) {
    const uint32_t token = lw_words(k, 1)[i];
    if (token < vocabulary) ++counts[token];
  }
}

LW_INLINE void lw_call_penalise(const LwCall* k) {
  const int64_t n = k->d[1];
  const uint32_t* counts = lw_words(k, 1);
  const float repeat = *lw_floats(k, 2), presence = *lw_floats(k, 3), often = *lw_floats(k, 4);
  const lw_range s = lw_split(n, k->t, k->T);
  for (int64_t row = 0; row < k->live; ++row)
    for (int64_t i = s.begin; i < s.end; ++i) {
      const float x = lw_floats(k, 0)[row * n + i];
      float y = x > 0 ? x / repeat : x * repeat;
      y = y - presence - often * (float)counts[i];
      ((float*)k->out[0])[row * n + i] = counts[i] ? y : x;
    }
}

#endif  // LW_CALLS_RANK_H
