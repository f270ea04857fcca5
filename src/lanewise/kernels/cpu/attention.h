// Attention over the paged KV pool of one layer: the ABI (attention.cpp implements it, once for
// each cache dtype).
//
// Recipe, the same for every row count, tile, thread count, split and instruction set:
//   score_j = scale * (fma chain over the head's width of q_d * k_jd, from 0); softcap c > 0: then
//             c * tanh(score / c).
//   Positions go in pieces of 256, counted from absolute 0, whatever a page holds.  In a piece,
//   over the row's visible positions only: m = max score; p_j = exp(score_j - m); sum = Sums of p
//   over the piece's 256 slots (masked slots are +0); o_c = fma chain over the visible positions,
//   ascending, of p_j * v_jc, from 0.
//   Pieces with a visible position are merged ascending, the first as it stands:
//   M = max(ma, mb), ea = exp(ma - M), eb = exp(mb - M), sum = fma(sb, eb, sa * ea), o likewise.
//   A head with a sink merges it last: a piece of max = sink, sum = 1, o = 0.
//   out = o / sum + 0.
// A masked position is never read into a result, so that a stale NaN in a page cannot leak.
//
// Row r sees positions p - window + 1 (0 if window is 0) to p = positions[r].  It is absent, and
// its output 0, when slots[r] >= slot_count, p >= table_width * page, or the id of a page that it
// sees is >= pages.
#ifndef LW_ATTENTION_H
#define LW_ATTENTION_H

#include <stdint.h>

#include "cache.h"
#include "threads.h"

constexpr int64_t LW_ATTENTION_PIECE = 256;  // positions
constexpr int64_t LW_ATTENTION_TILE = 16;    // rows of one item of the whole form

// Finished outputs of heads h0 .. h0 + nheads - 1 of a row, contiguous, nheads * d floats.
typedef void (*lw_row_epilogue)(void* env, const float* head, int64_t row, int64_t h0,
                                int32_t nheads);

typedef struct {
  const float* q;  // row r, head h at q + r * qstride + h * d
  int64_t qstride;
  const void* k;   // [parts][kv_heads][d][span]; q8_0 (d % 32 == 0): see cache.h
  const void* v;   // [parts][kv_heads][span][d]
  const uint32_t* table;  // page id of (slot, position): table[slot * table_width + p / page]
  int64_t table_width;
  const uint32_t* slots;      // per row
  const uint32_t* positions;  // per row
  int64_t rows, heads, kv_heads, d;  // heads % kv_heads == 0; d in 1..256
  float scale, softcap;  // softcap 0: none
  int64_t window;        // 0: none
  float* out;            // [rows][ostride]; NULL when there is an epilogue
  int64_t ostride;
  float* partial;  // split form: [rows][heads][pieces][d + 2]: max, sum, d outputs
  int64_t pieces;  // split form: >= lw_attention_pieces(...)
  lw_row_epilogue epilogue;
  void* env;
  void* scratch;  // per thread, 64-aligned, lw_attention_scratch_<kv>(d, heads / kv_heads) bytes
  int64_t pages;        // pages of the pool
  int64_t slot_count;   // rows of the table
  const float* sinks;   // per head a logit that shares the softmax and brings no value; NULL: none
  int64_t page;         // positions of a page: 16, 32, or a multiple of 64
} LwAttention;

// The least `pieces` for these rows; a run-time number, so that the split follows the live lengths.
// reach = table_width * page.
LW_INLINE int64_t lw_attention_pieces(const uint32_t* positions, int64_t rows,
                                      int64_t reach) {
  int64_t most = 0;
  for (int64_t r = 0; r < rows; ++r)
    if ((int64_t)positions[r] < reach && positions[r] > most) most = positions[r];
  return most / LW_ATTENTION_PIECE + 1;
}

LW_INLINE int64_t lw_attention_partial_floats(int64_t rows, int64_t heads, int64_t pieces,
                                              int64_t d) {
  return rows * heads * pieces * (d + 2);
}

// kv: f16, bf16, f32 or q8_0.
//   whole: items = lw_attention_items(rows, kv_heads); an item is a kv head and a tile of rows.
//          Later tiles see more, so threads should take items in turn (t, t + T, ...).
//   split: items = rows * kv_heads * pieces (row, kv head, piece), writes `partial`;
//          after a barrier, merge: items = rows * heads, a head of a row.
#define LW_ATTENTION_DECLARE(kv)                                                              \
  LW_EXPORT int64_t lw_attention_items_##kv(int64_t rows, int64_t kv_heads);                  \
  LW_EXPORT int64_t lw_attention_scratch_##kv(int64_t d, int64_t group);                      \
  LW_EXPORT void lw_attention_##kv(const LwAttention* a, int64_t item0, int64_t item1);       \
  LW_EXPORT void lw_attention_piece_##kv(const LwAttention* a, int64_t item0, int64_t item1); \
  LW_EXPORT void lw_attention_merge_##kv(const LwAttention* a, int64_t item0, int64_t item1);
LW_ATTENTION_DECLARE(f16)
LW_ATTENTION_DECLARE(bf16)
LW_ATTENTION_DECLARE(f32)
LW_ATTENTION_DECLARE(q8_0)

#endif  // LW_ATTENTION_H
