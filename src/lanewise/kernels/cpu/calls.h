// Ops that have a function of their own: every thread calls it and takes its share.
//
// What device data could break is defined here and nowhere refused: a count is cut at the rows that
// there are, an id beyond its table writes or reads nothing.  Sums are fma chains in the order that
// docs/recipes.md names; a result does not depend on the number of threads.
#ifndef LW_CALLS_H
#define LW_CALLS_H

#include "program.h"

struct LwCall {
  uint8_t* in[10];
  uint8_t* out[4];
  int64_t d[12];  // sizes, in the order of kernels/calls.py
  float f[8];
  int64_t live;   // rows that are live
  int32_t t, T;
  uint8_t* scratch;
};

constexpr uint32_t LW_ABSENT = 0xffffffffu;

LW_INLINE const uint32_t* lw_words(const LwCall* k, int i) { return (const uint32_t*)k->in[i]; }
LW_INLINE const float* lw_floats(const LwCall* k, int i) { return (const float*)k->in[i]; }

// Element i of an array of dtype 0 f32, 1 f16, 2 bf16.
LW_INLINE float lw_get(const uint8_t* p, int64_t dtype, int64_t i) {
  if (dtype == 0) return ((const float*)p)[i];
  const uint16_t h = ((const uint16_t*)p)[i];
  return dtype == 1 ? lw_f16_to_f32(h) : lw_bf16_to_f32(h);
}
LW_INLINE void lw_put(uint8_t* p, int64_t dtype, int64_t i, float x) {
  if (dtype == 0) ((float*)p)[i] = x;
  if (dtype == 1) ((uint16_t*)p)[i] = lw_f32_to_f16(x);
  if (dtype == 2) ((uint16_t*)p)[i] = lw_f32_to_bf16(x);
}

// ---- rows of a step ----

LW_INLINE void lw_call_ragged_rows(const LwCall* k) {
  if (k->t) return;
  const uint32_t *lengths = lw_words(k, 0), *extents = lw_words(k, 1);
  uint32_t *slots = (uint32_t*)k->out[0], *positions = (uint32_t*)k->out[1];
  const int64_t sequences = k->d[0], rows = k->d[1], reach = k->d[2];
  int64_t at = 0;
  for (int64_t s = 0; s < sequences && at < rows; ++s) {
    const int64_t first = lw_least(lengths[s], reach) - (int64_t)extents[s];
    const int64_t count = lw_least(extents[s], rows - at);
    for (int64_t i = 0; i < count; ++i, ++at) {
      const bool there = first + i >= 0;
      slots[at] = there ? (uint32_t)s : LW_ABSENT;
      positions[at] = there ? (uint32_t)(first + i) : LW_ABSENT;
    }
  }
  for (; at < rows; ++at) slots[at] = positions[at] = LW_ABSENT;
}

LW_INLINE void lw_call_prefill_rows(const LwCall* k) {
  if (k->t) return;
  const int64_t length = lw_least(*lw_words(k, 0), k->d[1]), base = *lw_words(k, 1);
  uint32_t* positions = (uint32_t*)k->out[0];
  for (int64_t i = 0; i < k->d[0]; ++i)
    positions[i] = length ? (uint32_t)lw_least(base + i, length - 1) : LW_ABSENT;
}

LW_INLINE void lw_call_last_ids(const LwCall* k) {
  const uint32_t* ids = lw_words(k, 0);
  const lw_range s = lw_split(k->live, k->t, k->T);
  for (int64_t i = s.begin; i < s.end; ++i) {
    uint32_t id = ids[i];
    for (int64_t j = i + 1; j < k->live; ++j)
      if (ids[j] == id) id = LW_ABSENT;
    ((uint32_t*)k->out[0])[i] = id;
  }
}

// ---- whole rows into a state: threads share the columns out, so that the last row wins ----

LW_INLINE void lw_call_scatter_rows(const LwCall* k) {
  const int64_t capacity = k->d[0], width = k->d[1], to = k->d[2], from = k->d[3];
  const uint32_t* ids = lw_words(k, 2);
  const lw_range s = lw_split(width, k->t, k->T);
  for (int64_t row = 0; row < k->live; ++row) {
    const int64_t id = ids[row];
    if (id >= capacity) continue;
    for (int64_t i = s.begin; i < s.end; ++i) {
      const int64_t a = row * width + i, b = id * width + i;
      if (to != from) lw_put(k->out[0], to, b, lw_floats(k, 1)[a]);
      else if (to == 1 || to == 2) ((uint16_t*)k->out[0])[b] = ((const uint16_t*)k->in[1])[a];
      else ((uint32_t*)k->out[0])[b] = lw_words(k, 1)[a];
    }
  }
}

#include "calls_rank.h"
#include "calls_step.h"
#include "calls_chunk.h"

#endif  // LW_CALLS_H
