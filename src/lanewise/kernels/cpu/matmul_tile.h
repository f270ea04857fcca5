// Tiles of a quantised product.  Laws (law 2 made code; the only places where floats are added):
//  - a chain covers 512 of K (16 blocks) from zero: acc = fma((float)z, fl(d_w * d_x), acc),
//    ascending; mins in a second chain, accm = fma(m_w, sv, accm);
//  - chains are added ascending; the first is taken as it is; result = total + totalm;
//  - lanes are output rows; T tokens share what is loaded of the weights.
// lw_chain: one panel, straight from its packed form.  A panel is one forward stream and the next
// panel follows it, which is what hardware prefetchers want: on Zen 4, two panels in flight or
// software prefetch were 10 to 50 % slower for one token; only a jump elsewhere is prefetched.
// lw_tile (on AVX-512 for q6_k alone: lw_chain is as fast for others): from one 512 of K unpacked
// to int16 words (codes less their bias): 16 multiply-add pairs, 32 * 128 * 16256 < 2^31.
#pragma once
#include "matmul.h"
#include "matmul_dot.h"

// Of lw_tile: sixteen running sums, and a step: words of P panels, two of K (or bytes, four of K)
// against as much of a row.
#if defined(LW_AVX2)
// One asm each: twelve sums, two of weights and two others are all the registers that there are,
// and what the compiler orders itself spills one of them.
typedef LwPair LwSum;
template <bool BYTES> LW_INLINE lw_i32 lw_sum(LwSum z) {
  const __m256i one = _mm256_set1_epi16(1);
  return lw_whole(BYTES ? LwPair{lw_madd16(z.a, one), lw_madd16(z.b, one)} : z);
}
#define LW_STEP(MULTIPLY, ADD)                                                             \
  if (first)                                                                               \
    asm("vpbroadcastd %2, %1\n\t" MULTIPLY " %1, %3, %0\n\t" MULTIPLY " %1, %4, %1"        \
        : "=&x"(z.a), "=&x"(z.b)                                                           \
        : "m"(*(const lw_i32_any*)row), "x"(u.a), "x"(u.b));                               \
  else                                                                                     \
    asm("vpbroadcastd %4, %3\n\t" MULTIPLY " %3, %5, %2\n\t" MULTIPLY " %3, %6, %3\n\t"    \
        ADD " %2, %0, %0\n\t" ADD " %3, %1, %1"                                            \
        : "+x"(z.a), "+x"(z.b), "=&x"(p), "=&x"(q)                                         \
        : "m"(*(const lw_i32_any*)row), "x"(u.a), "x"(u.b));
LW_INLINE void lw_step_words(LwSum& z, LwPair u, const void* row, bool first) {
  __m256i p, q;
  LW_STEP("vpmaddwd", "vpaddd")
}
LW_INLINE void lw_step_bytes(LwSum& z, LwPair u, const void* row, bool first) {
  __m256i p, q;
  LW_STEP("vpmaddubsw", "vpaddw")  // to the depths of matmul_dot_avx2.h
}
#undef LW_STEP
template <bool BYTES, int P, int T>
LW_INLINE void lw_step(LwSum (&z)[P][T], int t, const lw_u32 v[P], const void* row, bool first) {
  LW_UNROLL for (int p = 0; p < P; ++p) {
    if constexpr (BYTES) lw_step_bytes(z[p][t], lw_halves(v[p]), row, first);
    else lw_step_words(z[p][t], lw_halves(v[p]), row, first);
  }
}
#elif defined(LW_AVX512)
// Written out: compilers make two slower instructions of what they are told to be one.
typedef lw_i32 LwSum;
template <bool BYTES> LW_INLINE lw_i32 lw_sum(LwSum z) { return z; }
template <bool BYTES, int P, int T>
LW_INLINE void lw_step(LwSum (&z)[P][T], int t, const lw_u32 v[P], const void* two, bool first) {
  LW_UNROLL for (int p = 0; p < P; ++p) {
    if (first) z[p][t] = lw_i32{};
    asm("vpdpwssd %2%{1to16%}, %1, %0"
        : "+v"(z[p][t])
        : "v"(v[p]), "m"(*(const lw_i32_any*)two));
  }
}
#else
typedef lw_i32 LwSum;
template <bool BYTES> LW_INLINE lw_i32 lw_sum(LwSum z) { return z; }
template <bool BYTES, int P, int T>
LW_INLINE void lw_step(LwSum (&z)[P][T], int t, const lw_u32 v[P], const void* two, bool first) {
  const int32_t a = *(const lw_i32_any*)two;
  LW_UNROLL for (int p = 0; p < P; ++p) {
    lw_i32 was = first ? lw_i32{} : z[p][t];
    lw_i32 w = (lw_i32)v[p];
    z[p][t] = was + ((lw_i32)((lw_u32)w << 16) >> 16) * (int32_t)(int16_t)a + (w >> 16) * (a >> 16);
  }
}
#endif

template <class F, int T> struct LwChains {
  lw_f32 acc[T], mins[T];
};

template <class F, int T>
LW_INLINE void lw_chain_add(LwChains<F, T>& total, const LwChains<F, T>& c, bool first) {
  LW_UNROLL for (int t = 0; t < T; ++t) {
    total.acc[t] = first ? c.acc[t] : total.acc[t] + c.acc[t];
    if constexpr (F::MINS) total.mins[t] = first ? c.mins[t] : total.mins[t] + c.mins[t];
  }
}

// One block's sums into the chains of one panel.
template <class F, int T>
LW_INLINE void lw_fold(const LwBlock& blk, const LwRows<T>& x, int64_t b, lw_i32 z[T][2],
                       LwChains<F, T>& c) {
  LW_UNROLL for (int sub = 0; sub < F::SUBS; ++sub) {
    lw_f32 d = F::scale(blk, sub);
    LW_UNROLL for (int t = 0; t < T; ++t) {
      float s = ((const float*)(x.row[t] + x.plane.s))[b];
      c.acc[t] = lw_fma(lw_float(z[t][sub]), d * s, c.acc[t]);
    }
  }
}
template <class F, int T>
LW_INLINE void lw_fold_mins(const LwBlock& blk, const LwRows<T>& x, int64_t b, LwChains<F, T>& c) {
  lw_f32 m = F::minimum(blk);
  LW_UNROLL for (int t = 0; t < T; ++t)
    c.mins[t] = lw_fma(m, lw_all(((const float*)(x.row[t] + x.plane.sv))[b]), c.mins[t]);
}

// The chains of one panel x T rows over blocks [b0, b1).  FETCH: prefetch, `ahead` bytes ahead.
template <class F, int W, int T, bool FETCH>
LW_INLINE LwChains<F, T> lw_chain(const uint8_t* panel, int64_t nb, const LwRows<T>& x, int64_t b0,
                                  int64_t b1, int64_t ahead) {
#if defined(LW_DOTPROD)
  constexpr bool apart = T > 1;  // its sums and both chains are more than it has registers
#else
  constexpr bool apart = false;
#endif
  LwChains<F, T> c = {};
  LW_ROLL for (int64_t b = b0; b < b1; ++b) {
    if constexpr (FETCH)
      LW_UNROLL for (int i = 0; i < F::BLOCK; i += 64)
        lw_prefetch(panel + b * F::BLOCK + ahead + i);
    const LwBlock blk = F::block(panel, b, nb);
    lw_i32 z[T][2];
    lw_dot<F, W, T>(blk, x, b, z);
    lw_fold<F, T>(blk, x, b, z, c);
    if constexpr (F::MINS && !apart) lw_fold_mins<F, T>(blk, x, b, c);
  }
  if constexpr (F::MINS && apart)
    LW_ROLL for (int64_t b = b0; b < b1; ++b)
      lw_fold_mins<F, T>(F::block(panel, b, nb), x, b, c);
  return c;
}

template <class F, int W, int T, bool FETCH>
LW_NOINLINE void lw_direct_chains(const uint8_t* panel, const LwRows<T>& rows, int64_t nb,
                                  int64_t ahead, LwChains<F, T>& total) {
  const LwRows<T> x = rows;
  for (int64_t b0 = 0; b0 < nb; b0 += LW_CHAIN_BLOCKS) {
    const int64_t b1 = lw_min64(nb, b0 + LW_CHAIN_BLOCKS);
    lw_chain_add(total, lw_chain<F, W, T, FETCH>(panel, nb, x, b0, b1, ahead), b0 == 0);
  }
}

template <class F, int W, int T>
LW_INLINE void lw_direct(const uint8_t* panel, const LwRows<T>& x, int64_t nb, int64_t ahead,
                         LwChains<F, T>& total) {
  // Much to compute makes the stream so slow that the hardware stays too close to it (measured).
  enum { LIGHT = T == 1 && F::K == 32 && F::KIND != LW_BIT };
  if (ahead == 0) ahead = LIGHT ? -1 : 4096;
  if (ahead > 0) lw_direct_chains<F, W, T, true>(panel, x, nb, ahead, total);
  else lw_direct_chains<F, W, T, false>(panel, x, nb, 0, total);
}

// Several chains, added to what is in `total` already (b0 > 0).
template <class F, int W, int T>
LW_NOINLINE void lw_packed_tile(const uint8_t* panel, int64_t nb, const LwRows<T>& rows,
                                int64_t b0, int64_t b1, LwChains<F, T>& total) {
  const LwRows<T> x = rows;
  for (int64_t b = b0; b < b1; b += LW_CHAIN_BLOCKS) {
    const int64_t end = lw_min64(b1, b + LW_CHAIN_BLOCKS);
    lw_chain_add(total, lw_chain<F, W, T, false>(panel, nb, x, b, end, 0), b == 0);
  }
}

// Does a tile take bytes of codes (with their bias) and of activations, not words?
template <class F, int W> LW_INLINE constexpr bool lw_byte_tiles() {
#if defined(LW_AVX2)
  return W == 1 && F::KIND == LW_NIBBLES;
#else
  return false;
#endif
}

// One 512 of K of a panel as a tile reads it: words [block][16][16 rows], or bytes
// [block][8][16 rows][4], f32 scales and mins.
template <class F> struct LwUnpacked {
  lw_u32* words;
  lw_f32* scales;  // [block][SUBS]
  lw_f32* mins;    // [block]
};

template <class F, int W>
LW_NOINLINE void lw_unpack(const uint8_t* panel, int64_t nb, int64_t b0, int64_t count,
                           LwUnpacked<F> to) {
  typedef uint16_t halves __attribute__((vector_size(64)));
  LW_ROLL for (int64_t i = 0; i < count; ++i) {
    const LwBlock blk = F::block(panel, b0 + i, nb);
    if constexpr (lw_byte_tiles<F, W>()) {
      LW_UNROLL for (int g = 0; g < 8; ++g) to.words[i * 8 + g] = lw_group<F::KIND>(blk, g);
    } else LW_UNROLL for (int g = 0; g < 8; ++g) {
      halves v = (halves)lw_group<F::KIND>(blk, g);
      to.words[i * 16 + g * 2] = (lw_u32)((v & 255) - (uint16_t)F::OFFSET);
      to.words[i * 16 + g * 2 + 1] = (lw_u32)((v >> 8) - (uint16_t)F::OFFSET);
    }
    LW_UNROLL for (int s = 0; s < F::SUBS; ++s) to.scales[i * F::SUBS + s] = F::scale(blk, s);
    if constexpr (F::MINS) to.mins[i] = F::minimum(blk);
  }
}

// The chains of P panels x T rows over `count` blocks from block b0 of K.
template <class F, int W, int P, int T>
LW_NOINLINE void lw_tile(const LwUnpacked<F>* from, const LwRows<T>& rows, int64_t b0,
                         int64_t count, LwChains<F, T> c[P]) {
  const LwRows<T> x = rows;
  LwUnpacked<F> w[P];
  lw_f32 acc[P][T] = {};
  LW_UNROLL for (int p = 0; p < P; ++p) w[p] = from[p];
  LW_ROLL for (int64_t i = 0; i < count; ++i) {
    LW_UNROLL for (int sub = 0; sub < F::SUBS; ++sub) {
      constexpr bool bytes = lw_byte_tiles<F, W>();
      constexpr int all = bytes ? 8 : 16, steps = all / F::SUBS;
      LwSum z[P][T];
      LW_UNROLL for (int g = 0; g < steps; ++g) {
        const int at = sub * steps + g;
        lw_u32 v[P];
        LW_UNROLL for (int p = 0; p < P; ++p) v[p] = w[p].words[i * all + at];
        LW_UNROLL for (int t = 0; t < T; ++t)
          lw_step<bytes, P, T>(
              z, t, v, x.row[t] + (bytes ? 0 : x.plane.words) + (b0 + i) * (all * 4) + at * 4,
              g == 0);
      }
      lw_f32 d[P];
      LW_UNROLL for (int p = 0; p < P; ++p) d[p] = w[p].scales[i * F::SUBS + sub];
      LW_UNROLL for (int t = 0; t < T; ++t) {
        const float s = ((const float*)(x.row[t] + x.plane.s))[b0 + i];
        LW_UNROLL for (int p = 0; p < P; ++p) {
          lw_i32 sum = lw_sum<bytes>(z[p][t]);
          if constexpr (bytes && F::OFFSET != 0)  // -8 times the sum of the row's block
            sum += lw_alli(((const lw_i32_any*)(x.row[t] + x.plane.n8))[b0 + i]);
          acc[p][t] = lw_fma(lw_float(sum), d[p] * s, acc[p][t]);
        }
      }
    }
  }
  LW_UNROLL for (int p = 0; p < P; ++p) LW_UNROLL for (int t = 0; t < T; ++t) {
    c[p].acc[t] = acc[p][t];
    acc[p][t] = lw_f32{};
  }
  if constexpr (F::MINS) {
    LW_ROLL for (int64_t i = 0; i < count; ++i) {
      lw_f32 m[P];
      LW_UNROLL for (int p = 0; p < P; ++p) m[p] = w[p].mins[i];
      LW_UNROLL for (int t = 0; t < T; ++t) {
        const lw_f32 sv = lw_all(((const float*)(x.row[t] + x.plane.sv))[b0 + i]);
        LW_UNROLL for (int p = 0; p < P; ++p) acc[p][t] = lw_fma(m[p], sv, acc[p][t]);
      }
    }
    LW_UNROLL for (int p = 0; p < P; ++p) LW_UNROLL for (int t = 0; t < T; ++t)
      c[p].mins[t] = acc[p][t];
  }
}
