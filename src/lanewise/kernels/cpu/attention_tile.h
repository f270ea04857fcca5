// The inner loops of attention: one small product kernel, used twice, and the softmax of a piece.
//
// "q rows" are (row, head) pairs of one kv head, row-major: q row = row * group + head.  All
// scratch matrices have one row per q row.
#ifndef LW_ATTENTION_TILE_H
#define LW_ATTENTION_TILE_H

#include "attention.h"
#include "math.h"
#include "mem.h"
#include "sum.h"

constexpr int64_t LW_ATT_D = 256;               // widest head
constexpr int64_t LW_ATT_LD = LW_ATT_D + 16;    // row stride of q, scores and outputs: no set clash
constexpr int64_t LW_ATT_Q = 128;               // q rows at a time
constexpr int LW_ATT_R = 6;                     // q rows whose sums stay in registers
// Vectors of columns: 6 x 4 sums + 4 + 1 of 32 registers, 6 x 2 + 2 + 1 of 16.  Few rows take more
// columns, so that enough sums are under way to hide the latency of fma.
#if defined(LW_SCALAR)
constexpr int LW_ATT_C = 8;
constexpr int lw_att_columns(int) { return LW_ATT_C; }
#elif defined(__AVX512F__) || defined(__aarch64__)
constexpr int LW_ATT_C = 4;
constexpr int lw_att_columns(int rows) { return rows <= 3 ? 8 : LW_ATT_C; }
#else
constexpr int LW_ATT_C = 2;
constexpr int lw_att_columns(int rows) { return rows == 1 ? 8 : rows == 2 ? 4 : LW_ATT_C; }
#endif
#define LW_ATT_MEMBER inline __attribute__((always_inline))

LW_INLINE vf lw_att_load(const float* p) { return vf_load(p); }
LW_INLINE vf lw_att_load(const uint16_t* p) { return vf_load_f16(p); }
enum lw_bf16 : uint16_t {};
LW_INLINE vf lw_att_load(const lw_bf16* p) { return vf_load_bf16((const uint16_t*)p); }

// Matrices [n][columns] that are read as f32, a vector of columns at a time: `group` begins every
// 32 rows, `next` ends a row, `at` moves to other columns.
template <class T> struct lw_att_plain {
  const T* p;
  int64_t ld;
  static constexpr bool GROUPS = false;
  template <int C> LW_ATT_MEMBER void group(vf*) {}
  LW_ATT_MEMBER vf get(int c, const vf*) const { return lw_att_load(p + c * VF_N); }
  LW_ATT_MEMBER void next() { p += ld; }
  LW_ATT_MEMBER lw_att_plain at(int64_t c) const { return {p + c, ld}; }
};
// Keys of a q8_0 block: codes [d][64], scales [d / 32][64].
struct lw_att_keys {
  const int8_t* p;
  const uint16_t* scales;
  static constexpr bool GROUPS = true;
  template <int C> LW_ATT_MEMBER void group(vf* s) {
    for (int c = 0; c < C; ++c) s[c] = vf_load_f16(scales + c * VF_N);
    scales += LW_PAGE;
  }
  LW_ATT_MEMBER vf get(int c, const vf* s) const {
    return vf_mul(vi_to_f(vi_load_i8(p + c * VF_N)), s[c]);
  }
  LW_ATT_MEMBER void next() { p += LW_PAGE; }
  LW_ATT_MEMBER lw_att_keys at(int64_t c) const { return {p + c, scales + c}; }
};
// Values of a q8_0 block: codes [n][d], scales [n][d / 32], widened.
struct lw_att_values {
  const int8_t* p;
  const float* scales;
  int64_t d;
  static constexpr bool GROUPS = false;
  template <int C> LW_ATT_MEMBER void group(vf*) {}
  LW_ATT_MEMBER vf get(int c, const vf*) const {
    return vf_mul(vi_to_f(vi_load_i8(p + c * VF_N)), vf_set(scales[c * VF_N / 32]));
  }
  LW_ATT_MEMBER void next() { p += d, scales += d / 32; }
  LW_ATT_MEMBER lw_att_values at(int64_t c) const { return {p + c, scales + c / 32, d}; }
};

// What is asked for while a block is worked on, evenly, as memory answers: lines of 64 bytes,
// `rate` sixteenths of one with each row.  Into L2, which takes far more requests at a time than
// L1 (10 -> 17 GB/s measured).
struct lw_att_ahead {
  const char* at;
  int32_t rate;
};

// o[r][c] = fma chain over i < n, ascending, of a[r][i] * b[i][c], from o[r][c] (or 0 if `fresh`):
// R rows, C vectors of columns.
template <int R, int C, class B>
static LW_ATT_MEMBER void lw_att_block(const float* a, int64_t n, B b, float* o, bool fresh,
                                       lw_att_ahead& ahead) {
  int32_t due = 0;
  vf acc[R][C], s[C];
#pragma clang loop unroll(full)
  for (int r = 0; r < R; ++r)
#pragma clang loop unroll(full)
    for (int c = 0; c < C; ++c)
      acc[r][c] = fresh ? vf_zero() : vf_load(o + r * LW_ATT_LD + c * VF_N);
  for (int64_t i = 0; i < n;) {
    int64_t end = B::GROUPS && n - i > 32 ? i + 32 : n;
    b.template group<C>(s);
    for (; i < end; ++i, b.next()) {
      LW_ROLL for (due += ahead.rate; due >= 16; due -= 16, ahead.at += 64)
        __builtin_prefetch(ahead.at, 0, 2);
      if constexpr (C > R) {
        vf x[R];
#pragma clang loop unroll(full)
        for (int r = 0; r < R; ++r) x[r] = vf_set(a[r * LW_ATT_LD + i]);
#pragma clang loop unroll(full)
        for (int c = 0; c < C; ++c) {
          vf w = b.get(c, s);
#pragma clang loop unroll(full)
          for (int r = 0; r < R; ++r) acc[r][c] = vf_fma(x[r], w, acc[r][c]);
        }
      } else {
        vf w[C];
#pragma clang loop unroll(full)
        for (int c = 0; c < C; ++c) w[c] = b.get(c, s);
#pragma clang loop unroll(full)
        for (int r = 0; r < R; ++r) {
          vf x = vf_set(a[r * LW_ATT_LD + i]);
#pragma clang loop unroll(full)
          for (int c = 0; c < C; ++c) acc[r][c] = vf_fma(x, w[c], acc[r][c]);
        }
      }
    }
  }
#pragma clang loop unroll(full)
  for (int r = 0; r < R; ++r)
#pragma clang loop unroll(full)
    for (int c = 0; c < C; ++c) vf_store(o + r * LW_ATT_LD + c * VF_N, acc[r][c]);
}

// The same over `width` columns (a whole number of vectors).
template <int R, class B>
static __attribute__((noinline)) void lw_att_rows(const float* a, int64_t n, const B& b, float* o,
                                                  int64_t width, bool fresh, const char* next,
                                                  int32_t rate) {
  constexpr int64_t WIDE = lw_att_columns(R) * VF_N, SOME = LW_ATT_C * VF_N;
  lw_att_ahead ahead = {next, rate};
  if (rate && width > WIDE) {
    int32_t times = (int32_t)((width + WIDE - 1) / WIDE);
    ahead.rate = (rate + times - 1) / times;
  }
  int64_t c = 0;
  for (; c + WIDE <= width; c += WIDE)
    lw_att_block<R, lw_att_columns(R)>(a, n, b.at(c), o + c, fresh, ahead);
  if constexpr (WIDE > SOME)
    for (; c + SOME <= width; c += SOME)
      lw_att_block<R, LW_ATT_C>(a, n, b.at(c), o + c, fresh, ahead);
  for (; c < width; c += VF_N) lw_att_block<R, 1>(a, n, b.at(c), o + c, fresh, ahead);
}

// The same for 1 to LW_ATT_R rows.
template <class B>
static inline void lw_att_product(int rows, const float* a, int64_t n, const B& b, float* o,
                                  int64_t width, bool fresh, const lw_att_ahead& ahead) {
  switch (rows) {
    case 6: return lw_att_rows<6>(a, n, b, o, width, fresh, ahead.at, ahead.rate);
    case 5: return lw_att_rows<5>(a, n, b, o, width, fresh, ahead.at, ahead.rate);
    case 4: return lw_att_rows<4>(a, n, b, o, width, fresh, ahead.at, ahead.rate);
    case 3: return lw_att_rows<3>(a, n, b, o, width, fresh, ahead.at, ahead.rate);
    case 2: return lw_att_rows<2>(a, n, b, o, width, fresh, ahead.at, ahead.rate);
    default: return lw_att_rows<1>(a, n, b, o, width, fresh, ahead.at, ahead.rate);
  }
}

// Walks `n` q rows in groups of at most LW_ATT_R, as equal as can be.
struct lw_att_groups {
  int64_t i, left;
  int rows;
  explicit lw_att_groups(int64_t n) : i(0), left(n), rows(0) { size(); }
  void size() {
    int32_t n = (int32_t)left;
    rows = n <= LW_ATT_R ? n : n / ((n + LW_ATT_R - 1) / LW_ATT_R);
  }
  bool more() const { return left > 0; }
  void next() { i += rows, left -= rows, size(); }
};

// The lanes of the vector at slot i that lie in [from, to).
LW_INLINE vm lw_att_seen(int64_t i, int64_t from, int64_t to) {
  vi at = vi_add(vi_iota(), vi_set((int32_t)i));
  return vm_and(vi_gt(at, vi_set((int32_t)from - 1)), vi_gt(vi_set((int32_t)to), at));
}

// The scale that is left to do after lw_att_top: rounding keeps order, so that for a scale above 0
// the largest score is the largest chain, scaled; scores that are not made from chains by such a
// scale alone are made first.
LW_INLINE float lw_att_left(float scale, float softcap) {
  return scale > 0.0f && !(softcap > 0.0f) ? scale : 1.0f;
}

// The largest score of slots [from, to) of a piece, from < to, s[0..256) being raw chains.
static inline float lw_att_top(float* s, int64_t from, int64_t to, float scale, float softcap) {
  int64_t i = from / VF_N * VF_N;
  if (softcap > 0.0f || !(scale > 0.0f))
    for (int64_t j = i; j < to; j += VF_N) {
      vf x = vf_mul(vf_load(s + j), vf_set(scale));
      if (softcap > 0.0f) x = vf_mul(vf_set(softcap), vf_tanh(vf_div(x, vf_set(softcap))));
      vf_store(s + j, x);
    }
  vf none = vf_set(-__builtin_inff()), top = none, other = none;
  if (i < from) {
    top = vf_select(lw_att_seen(i, from, to), vf_load(s + i), none);
    i += VF_N;
  }
  for (; i + 2 * VF_N <= to; i += 2 * VF_N) {
    top = vf_at_least(vf_load(s + i), top);
    other = vf_at_least(vf_load(s + i + VF_N), other);
  }
  for (; i < to; i += VF_N)
    other = vf_at_least(vf_select(lw_att_seen(i, from, to), vf_load(s + i), none), other);
  return vf_htop(vf_at_least(top, other)) * lw_att_left(scale, softcap);
}

// s[0..32): chains -> p, added to the lanes; slots outside [from, to) become +0.
template <bool ALL>
LW_INLINE void lw_att_exp(float* s, int64_t from, int64_t to, vf scale, vf m, vf* lanes) {
  vf x[LW_SUM_V];
  vm deep = vf_lt(m, vf_set(-__builtin_inff()));
  for (int v = 0; v < LW_SUM_V; ++v) {
    x[v] = vf_sub(vf_mul(vf_load(s + v * VF_N), scale), m);
    if (!VF_SCALES) deep = vm_or(deep, vf_lt(x[v], vf_set(-86.0f)));
  }
  bool normal = !VF_SCALES && !vm_any(deep);
  for (int v = 0; v < LW_SUM_V; ++v) {
    vf p = normal ? lw_exp_fall<true>(x[v]) : lw_exp_fall<false>(x[v]);
    if (!ALL) p = vf_select(lw_att_seen(v * VF_N, from, to), p, vf_zero());
    vf_store(s + v * VF_N, p);
    lanes[v] = vf_add(lanes[v], p);
  }
}

// s[0..256): raw chains -> p, given their largest score; slots [from, to) are visible, the others
// become +0 as far as the whole groups of 32 around them (nobody reads further).  The sum.
static inline float lw_att_softmax(float* s, int64_t from, int64_t to, float scale, float max) {
  vf by = vf_set(scale), m = vf_set(max), lanes[LW_SUM_V];
  for (int v = 0; v < LW_SUM_V; ++v) lanes[v] = vf_zero();
  for (int64_t i = from / 32 * 32; i < to; i += 32)
    if (i >= from && i + 32 <= to)
      lw_att_exp<true>(s + i, 0, 32, by, m, lanes);
    else
      lw_att_exp<false>(s + i, from - i, to - i, by, m, lanes);
  return lw_sum_tree(lanes);
}

// What n pairs of pieces, given by their maxima, are merged with: M = max(a, b), which becomes a,
// ea = exp(a - M) and eb = exp(b - M).  Whole vectors are read and written.
static inline void lw_att_weights(float* a, const float* b, int64_t n, float* ea, float* eb) {
  for (int64_t i = 0; i < n; i += VF_N) {
    vf old = vf_load(a + i), next = vf_load(b + i), top = vf_max(old, next);
    vf_store(ea + i, lw_exp_fall<false>(vf_sub(old, top)));
    vf_store(eb + i, lw_exp_fall<false>(vf_sub(next, top)));
    vf_store(a + i, top);
  }
}

// (sum, o) of the pieces so far, and of the next one: merged into the first.
static inline void lw_att_merge(float* sum, float* o, float ea, float next_sum,
                                const float* next_o, float eb, int64_t width) {
  *sum = lw_fmaf(next_sum, eb, *sum * ea);
  vf a = vf_set(ea), b = vf_set(eb);
  int64_t c = 0;
  for (; c + VF_N <= width; c += VF_N)
    vf_store(o + c, vf_fma(vf_load(next_o + c), b, vf_mul(vf_load(o + c), a)));
  if (c == width) return;
  vf old = vf_mul(vf_load_n(o + c, width - c), a);
  vf_store_n(o + c, vf_fma(vf_load_n(next_o + c, width - c), b, old), width - c);
}

// The merge with a sink: a last piece of max = sink, sum = 1 and o = 0.
static inline void lw_att_sink(float m, float* sum, float* o, float sink, int64_t width) {
  vf pair_max = vf_max(vf_set(m), vf_set(sink));
  vf ea = vf_exp(vf_sub(vf_set(m), pair_max)), eb = vf_exp(vf_sub(vf_set(sink), pair_max));
  *sum = vf_first(vf_fma(vf_set(1.0f), eb, vf_mul(vf_set(*sum), ea)));
  for (int64_t c = 0; c < width; c += VF_N) {
    int64_t n = width - c < VF_N ? width - c : VF_N;
    vf old = vf_mul(vf_load_n(o + c, n), ea);
    vf_store_n(o + c, vf_fma(vf_zero(), eb, old), n);
  }
}

// out = o / sum + 0
static inline void lw_att_finish(float* out, const float* o, float sum, int64_t d) {
  vf by = vf_set(sum), zero = vf_zero();
  for (int64_t c = 0; c < d; c += VF_N) {
    int64_t n = d - c < VF_N ? d - c : VF_N;
    vf_store_n(out + c, vf_add(vf_div(vf_load_n(o + c, n), by), zero), n);
  }
}

#endif  // LW_ATTENTION_TILE_H
