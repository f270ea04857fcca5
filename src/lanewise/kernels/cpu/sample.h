// Sampling one token of one row: the ABI (sample.cpp implements it).
//
// temperature 0: the largest logit, the lowest index on ties.  Else, with T = temperature:
//   w_i = exp(l_i * (1/T) - max);  top-k keeps the k largest (value descending, index ascending);
//   top-p keeps the smallest set, in that order, whose running sum reaches p * total, the entry that
//   crosses included;  min-p keeps w_i >= p * max;  the draw takes the first i in index order whose
//   running f32 sum exceeds draw * total of what is kept.  Nothing is renormalised between the steps.
// token = 0xFFFFFFFF if any logit is NaN or +inf, if all are -inf, or if n is 0: the caller raises.
#ifndef LW_SAMPLE_H
#define LW_SAMPLE_H

#include <stdint.h>

#include "threads.h"

constexpr uint32_t LW_NO_TOKEN = 0xFFFFFFFFu;

// top_k 0: off; top_p 1: off; min_p 0: off; draw in [0, 1), held to [0, 1 - 2^-24].
// scratch: 64-aligned, lw_sample_scratch(n) bytes.
LW_EXPORT void lw_sample_row(const float* logits, int64_t n, float temperature, uint32_t top_k,
                             float top_p, float min_p, float draw, uint32_t* token, void* scratch);
LW_EXPORT int64_t lw_sample_scratch(int64_t n);
// The lowest index of the largest element; a NaN never wins; LW_NO_TOKEN when there is no number.
LW_EXPORT uint32_t lw_argmax(const float* logits, int64_t n);

#endif  // LW_SAMPLE_H
