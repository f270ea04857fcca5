// Sampling one token of one row: the ABI (sample.cpp implements it).
//
// temperature 0 (or below, or NaN): the largest logit, the lowest index on ties.  Else, in f32:
//   z = l * (1 / T);  p = softmax(z) as in norm.h.  Order: value descending, index ascending.
//   top-k keeps the first k.
//   top-p: total = Sums of what is kept; an entry stays while the running sum (one add after the
//          other, in order) of the entries before it is below top_p * total.
//   min-p keeps p >= min_p * max(p).
//   draw:  running sums of what is kept, one add after the other, in index order; the first that
//          exceeds draw * (the last of them).
// Nothing is renormalised between the steps.
// token = 0xFFFFFFFF if any logit is NaN or +inf, if all are -inf and the temperature is above 0
// (nothing has a weight, and what has none is never drawn), or if n is 0: the caller raises.
#ifndef LW_SAMPLE_H
#define LW_SAMPLE_H

#include <stdint.h>

#include "threads.h"

constexpr uint32_t LW_NO_TOKEN = 0xFFFFFFFFu;

// top_k 0: off; top_p >= 1 (or NaN): off, 0 or below: one entry; min_p 0 or below: off, above 1 (or
// NaN): 1; draw is held to [0, 1 - 2^-24], NaN is 0.
// top: the largest logit's index (the lowest on ties) where it is known, and with it that no logit
// is NaN or +inf; else LW_NO_TOKEN.
// scratch: 64-aligned, lw_sample_scratch(n) bytes.
LW_EXPORT void lw_sample_row(const float* logits, int64_t n, float temperature, uint32_t top_k,
                             float top_p, float min_p, float draw, uint32_t top, uint32_t* token,
                             void* scratch);
LW_EXPORT int64_t lw_sample_scratch(int64_t n);
// The lowest index of the largest element; a NaN never wins; 0 when there is no number.
LW_EXPORT uint32_t lw_argmax(const float* logits, int64_t n);

#endif  // LW_SAMPLE_H
