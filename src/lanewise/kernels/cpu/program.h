// What the text of a program stands on: its context, places, shares of work, and rows of floats.
//
// Every thread runs the whole step as one function; a launch takes its share by lw_split or
// lw_columns, which depend on the sizes, t and T alone.  No function here changes a value: rows
// are copied, added or compared; arithmetic with a recipe lives in the other headers.
#ifndef LW_PROGRAM_H
#define LW_PROGRAM_H

#include "mem.h"
#include "lw_support.h"
#include "attention.h"
#include "cache.h"
#include "math.h"
#include "matmul.h"
#include "norm.h"
#include "quant.h"
#include "rope.h"
#include "sample.h"
#include "threads.h"
#include "vec.h"

struct LwContext {
  uint8_t* arena;           // step-local arrays that all threads share
  uint8_t* priv;            // and those that each thread has for itself
  int64_t priv_stride;
  uint8_t* scratch;         // one launch's scratch, per thread
  int64_t scratch_stride;
  uint8_t* const* buffers;  // constants, states, inputs, outputs
  const uint32_t* scalars;
  LwPool* pool;
  LwTuning tuning;
};

struct LwEnv {
  LwContext* c;
  uint8_t* const* p;
  int64_t row;  // of experts: the first row of the one at work
};

constexpr uint32_t LW_NO_PAGE = 0xffffffffu;

// A place is region << 60 | buffer << 40 | byte offset; region 0 arena, 1 private, 2 a buffer.
LW_INLINE void lw_places(const LwContext* c, int32_t t, const uint64_t* codes, int n, uint8_t** p) {
  for (int i = 0; i < n; ++i) {
    const uint64_t code = codes[i], offset = code & 0xffffffffffull;
    uint8_t* base = code >> 60 == 0   ? c->arena
                    : code >> 60 == 1 ? c->priv + t * c->priv_stride
                                      : c->buffers[(code >> 40) & 0xfffff];
    p[i] = base + offset;
  }
}

LW_INLINE int64_t lw_least(int64_t a, int64_t b) { return a < b ? a : b; }

// Live rows: a scalar of the submission, never more than the capacity.
LW_INLINE int64_t lw_live(const LwContext* c, int32_t index, int64_t capacity) {
  return lw_least(c->scalars[index], capacity);
}

LW_INLINE float lw_scalar_f32(const LwContext* c, int32_t index) {
  float x;
  __builtin_memcpy(&x, c->scalars + index, 4);
  return x;
}

LW_INLINE uint8_t* lw_scratch(const LwContext* c, int32_t t) {
  return c->scratch + t * c->scratch_stride;
}

// Take bytes of a launch's scratch, 64-aligned.
LW_INLINE uint8_t* lw_take(uint8_t** room, int64_t bytes) {
  uint8_t* p = *room;
  *room += (bytes + 63) / 64 * 64;
  return p;
}

// A thread's share of n columns, in whole granules.
LW_INLINE lw_range lw_columns(int64_t n, int64_t granule, int32_t t, int32_t T) {
  lw_range s = lw_split((n + granule - 1) / granule, t, T);
  s.begin = lw_least(s.begin * granule, n);
  s.end = lw_least(s.end * granule, n);
  return s;
}

// A thread's share of one product of a group: the group's `total` columns are one range, of which
// this product's n begin at `before`; shares are cut at whole granules of each product.
LW_INLINE int64_t lw_cut(int64_t at, int64_t before, int64_t n, int64_t granule) {
  const int64_t x = at - before;
  if (x <= 0) return 0;
  if (x >= n) return n;
  return lw_least((x + granule / 2) / granule * granule, n);
}
LW_INLINE lw_range lw_share(int64_t before, int64_t n, int64_t granule, int64_t total, int32_t t,
                            int32_t T) {
  lw_range s;
  s.begin = lw_cut(total * t / T, before, n, granule);
  s.end = lw_cut(total * (t + 1) / T, before, n, granule);
  return s;
}

// Rows sorted by expert times the matrix of each: m says all rows and the first matrix, `each` the
// bytes between matrices.  Rows past the sum of counts are stored as zeros, and read no weight.
LW_INLINE void lw_grouped(const LwMatmul* all, LwEnv* env, const uint32_t* counts, int64_t experts,
                          int64_t each, void (*product)(const LwMatmul*)) {
  LwMatmul m = *all;
  env->row = 0;
  for (int64_t e = 0; e < experts; ++e) {
    m.rows = lw_least(counts[e], all->rows - env->row);
    m.w = (const uint8_t*)all->w + e * each;
    m.w1 = all->w1 ? (const uint8_t*)all->w1 + e * each : nullptr;
    m.x = (const uint8_t*)all->x + env->row * all->xstride;
    if (m.rows) product(&m);
    env->row += m.rows;
  }
  float* zeros = (float*)all->scratch;
  const int64_t wide = all->w1 ? 2 : 1;
  for (; env->row < all->rows; ++env->row)
    for (int64_t c = all->col0; c < all->col1; c += all->granule) {
      const int64_t cols = lw_least(all->granule, all->col1 - c);
      for (int64_t i = 0; i < cols * wide; ++i) zeros[i] = 0;
      all->epilogue(all->env, zeros, cols * wide, 0, 1, c, (int32_t)cols);
    }
}

LW_INLINE void lw_copy_row(const float* x, float* out, int64_t n) {
  if (x == out) return;
  for (int64_t i = 0; i < n; i += VF_N) {
    const int64_t left = lw_least(n - i, VF_N);
    vf_store_n(out + i, vf_load_n(x + i, left), left);
  }
}

LW_INLINE void lw_add_row(const float* x, const float* y, float* out, int64_t n) {
  for (int64_t i = 0; i < n; i += VF_N) {
    const int64_t left = lw_least(n - i, VF_N);
    vf_store_n(out + i, vf_add(vf_load_n(x + i, left), vf_load_n(y + i, left)), left);
  }
}

LW_INLINE void lw_store_row_f16(const float* x, uint16_t* out, int64_t n) {
  for (int64_t i = 0; i < n; i += VF_N) {
    const int64_t left = lw_least(n - i, VF_N);
    vf_store_f16_n(out + i, vf_load_n(x + i, left), left);
  }
}

LW_INLINE void lw_store_row_bf16(const float* x, uint16_t* out, int64_t n) {
  for (int64_t i = 0; i < n; i += VF_N) {
    const int64_t left = lw_least(n - i, VF_N);
    vf_store_bf16_n(out + i, vf_load_n(x + i, left), left);
  }
}

LW_INLINE void lw_store_row_f8_e4m3(const float* x, uint8_t* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = lw_f32_to_f8_e4m3(x[i]);
}

LW_INLINE void lw_store_row_f8_e5m2(const float* x, uint8_t* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = lw_f32_to_f8_e5m2(x[i]);
}

LW_INLINE void lw_copy_bytes(const uint8_t* x, uint8_t* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = x[i];
}

LW_INLINE void lw_zero_bytes(uint8_t* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = 0;
}

// The part of the pool that holds a position, LW_NO_PAGE where there is none; pages of `page`
// positions, `pages` of them.
LW_INLINE uint32_t lw_part(const uint32_t* table, uint32_t slots, uint32_t width, uint32_t slot,
                           uint32_t position, uint32_t pages, uint32_t page) {
  if (slot >= slots || position / page >= width) return LW_NO_PAGE;
  const uint32_t id = table[(uint64_t)slot * width + position / page];
  if (id >= pages) return LW_NO_PAGE;
  return page <= LW_PAGE ? id : id * (page / LW_PAGE) + position % page / LW_PAGE;
}

// Where the rows of a cache write go.
struct LwPlaces {
  const uint32_t *table, *slots, *positions;
  uint32_t sequences, width, pages, page, span;
};

// The part of a row's place, and its offset there.
LW_INLINE uint32_t lw_row_part(const LwPlaces* at, int64_t row) {
  return lw_part(at->table, at->sequences, at->width, at->slots[row], at->positions[row],
                 at->pages, at->page);
}
LW_INLINE uint32_t lw_row_spot(const LwPlaces* at, int64_t row) {
  return at->positions[row] % at->span;
}

// Of rows at one place the last wins.  A thread walks its rows ascending, so all that it must know
// is where the rows of the threads after it go: such a place is theirs.
struct LwLater {
  int64_t begin, end;  // the rows of the threads after this one
  uint64_t bits[256];  // of each of their places one bit, so that few rows look further
};

LW_INLINE uint32_t lw_later_bit(const LwPlaces* at, uint32_t part, uint32_t spot) {
  return (part * at->span + spot) % (64 * 256);
}

static inline __attribute__((unused)) void lw_later_rows(LwLater* later, const LwPlaces* at,
                                                         lw_range mine, int64_t rows) {
  later->begin = mine.begin < mine.end ? mine.end : rows;
  later->end = rows;
  if (later->begin == rows) return;
  lw_zero_bytes((uint8_t*)later->bits, sizeof later->bits);
  for (int64_t row = later->begin; row < rows; ++row) {
    const uint32_t part = lw_row_part(at, row);
    if (part == LW_NO_PAGE) continue;
    const uint32_t bit = lw_later_bit(at, part, lw_row_spot(at, row));
    later->bits[bit / 64] |= 1ull << bit % 64;
  }
}

LW_INLINE bool lw_comes_later(const LwLater* later, const LwPlaces* at, uint32_t part,
                              uint32_t spot) {
  if (later->begin == later->end) return false;
  const uint32_t bit = lw_later_bit(at, part, spot);
  if (!(later->bits[bit / 64] >> bit % 64 & 1)) return false;
  for (int64_t row = later->begin; row < later->end; ++row)
    if (lw_row_spot(at, row) == spot && lw_row_part(at, row) == part) return true;
  return false;
}

// The largest of n logits and the lowest index that has it (columns count from col0).  A NaN or
// +infinity gives LW_NO_TOKEN: the caller then looks at the whole row.
LW_INLINE void lw_best(const float* x, int64_t n, int64_t col0, float* best, uint32_t* where) {
  vf most = vf_set(-__builtin_inff());
  bool sound = true;
  for (int64_t i = 0; i < n; i += VF_N) {
    const int64_t left = lw_least(n - i, VF_N);
    vf v = vf_load_n(x + i, left);
    if (left < VF_N) {
      float tail[VF_N];
      for (int64_t j = 0; j < VF_N; ++j) tail[j] = j < left ? x[i + j] : -__builtin_inff();
      v = vf_load(tail);
    }
    sound = sound && !vm_any(vf_isnan(v));
    most = vf_max(most, v);
  }
  const float top = vf_hmax(most);
  *best = top;
  *where = LW_NO_TOKEN;
  if (!sound || top == __builtin_inff()) return;
  for (int64_t i = 0; i < n; ++i)
    if (x[i] == top) {
      *where = (uint32_t)(col0 + i);
      return;
    }
}

// The best of all blocks, the lowest index on ties; LW_NO_TOKEN if any block has none.
LW_INLINE uint32_t lw_best_of(const float* best, const uint32_t* where, int64_t blocks) {
  float top = -__builtin_inff();
  uint32_t token = LW_NO_TOKEN;
  for (int64_t i = 0; i < blocks; ++i) {
    if (where[i] == LW_NO_TOKEN) return LW_NO_TOKEN;
    if (token == LW_NO_TOKEN || best[i] > top) {
      top = best[i];
      token = where[i];
    }
  }
  return token;
}

// Rounding to a storage type and back, where a graph's values are of that type.
LW_INLINE vf lw_as_f16(vf a) {
  uint16_t t[VF_N];
  vf_store_f16(t, a);
  return vf_load_f16(t);
}
LW_INLINE vf lw_as_bf16(vf a) {
  uint16_t t[VF_N];
  vf_store_bf16(t, a);
  return vf_load_bf16(t);
}

#endif  // LW_PROGRAM_H
