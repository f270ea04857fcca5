// Tiles of a quantised product from unpacked weights.  Laws (those of matmul_tile.h, and):
//  - several chains of 512 of K of a few panels are unpacked once for all tokens of a pass, to
//    int16 words (codes less their bias): 16 multiply-add pairs a block, 32 * 128 * 16256 < 2^31;
//  - AVX2 with one word and four bits takes bytes (codes with their bias) instead.
#pragma once
#include "matmul_tile.h"

// Does a tile take bytes of codes (with their bias) and of activations, not words?
template <class F, int W> LW_INLINE constexpr bool lw_byte_tiles() {
#if defined(LW_AVX2)
  return W == 1 && F::KIND == LW_NIBBLES;
#else
  return false;
#endif
}

// Blocks of a panel as a tile reads them: words [block][16][16 rows], or bytes
// [block][8][16 rows][4], f32 scales and mins.
template <class F> struct LwUnpacked {
  lw_u32* words;
  lw_f32* scales;  // [block][SUBS]
  lw_f32* mins;    // [block]
  lw_i32* pairs;   // [block][SUBS], of matmul_pairs.h
};

#if defined(LW_AVX512)

#include "matmul_pairs.h"

#else

// Sixteen running sums, and a step: words of P panels, two of K (or bytes, four of K) against as
// much of a row.
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

// The sums of sub-block `sub` of block i of what is unpacked, which is block b of the rows.
template <class F, int W, int P, int T>
LW_INLINE void lw_tile_sums(const LwUnpacked<F> (&w)[P], const LwRows<T>& x, int64_t b, int64_t i,
                            int sub, lw_i32 (&sums)[P][T]) {
  constexpr bool bytes = lw_byte_tiles<F, W>();
  constexpr int all = bytes ? 8 : 16, steps = all / F::SUBS;
  LwSum z[P][T];
  LW_UNROLL for (int g = 0; g < steps; ++g) {
    const int at = sub * steps + g;
    lw_u32 v[P];
    LW_UNROLL for (int p = 0; p < P; ++p) v[p] = w[p].words[i * all + at];
    LW_UNROLL for (int t = 0; t < T; ++t)
      lw_step<bytes, P, T>(z, t, v,
                           x.row[t] + (bytes ? 0 : x.plane.words) + b * (all * 4) + at * 4, g == 0);
  }
  LW_UNROLL for (int t = 0; t < T; ++t) LW_UNROLL for (int p = 0; p < P; ++p) {
    sums[p][t] = lw_sum<bytes>(z[p][t]);
    if constexpr (bytes && F::OFFSET != 0)  // -8 times the sum of the row's block
      sums[p][t] += lw_alli(((const lw_i32_any*)(x.row[t] + x.plane.n8))[b]);
  }
}

#endif

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
#if defined(LW_AVX512)
    lw_unpack_pairs<F>(to, i);
#endif
    LW_UNROLL for (int s = 0; s < F::SUBS; ++s) to.scales[i * F::SUBS + s] = F::scale(blk, s);
    if constexpr (F::MINS) to.mins[i] = F::minimum(blk);
  }
}

// The chains of P panels x T rows over `count` unpacked blocks, which start at block b0 of K, added
// to what is in `c` already (b0 = 0: nothing is).
template <class F, int W, int P, int T>
LW_NOINLINE void lw_tile(const LwUnpacked<F>* from, const LwRows<T>& rows, int64_t b0,
                         int64_t count, LwChains<F, T> c[P]) {
  const LwRows<T> x = rows;
  LwUnpacked<F> w[P];
  LW_UNROLL for (int p = 0; p < P; ++p) w[p] = from[p];
  LW_ROLL for (int64_t start = 0; start < count; start += LW_CHAIN_BLOCKS) {
    const int64_t end = lw_min64(count, start + LW_CHAIN_BLOCKS);
    const bool first = b0 + start == 0;
    lw_f32 acc[P][T] = {};
    LW_ROLL for (int64_t i = start; i < end; ++i) {
      LW_UNROLL for (int sub = 0; sub < F::SUBS; ++sub) {
        lw_i32 z[P][T];
        lw_tile_sums<F, W, P, T>(w, x, b0 + i, i, sub, z);
        lw_f32 d[P];
        LW_UNROLL for (int p = 0; p < P; ++p) d[p] = w[p].scales[i * F::SUBS + sub];
        LW_UNROLL for (int t = 0; t < T; ++t) {
          const float s = ((const float*)(x.row[t] + x.plane.s))[b0 + i];
          LW_UNROLL for (int p = 0; p < P; ++p)
            acc[p][t] = lw_fma(lw_float(z[p][t]), d[p] * s, acc[p][t]);
        }
      }
    }
    LW_UNROLL for (int p = 0; p < P; ++p) LW_UNROLL for (int t = 0; t < T; ++t) {
      c[p].acc[t] = first ? acc[p][t] : c[p].acc[t] + acc[p][t];
      acc[p][t] = lw_f32{};
    }
    if constexpr (F::MINS) {
      LW_ROLL for (int64_t i = start; i < end; ++i) {
        lw_f32 m[P];
        LW_UNROLL for (int p = 0; p < P; ++p) m[p] = w[p].mins[i];
        LW_UNROLL for (int t = 0; t < T; ++t) {
          const lw_f32 sv = lw_all(((const float*)(x.row[t] + x.plane.sv))[b0 + i]);
          LW_UNROLL for (int p = 0; p < P; ++p) acc[p][t] = lw_fma(m[p], sv, acc[p][t]);
        }
      }
      LW_UNROLL for (int p = 0; p < P; ++p) LW_UNROLL for (int t = 0; t < T; ++t)
        c[p].mins[t] = first ? acc[p][t] : c[p].mins[t] + acc[p][t];
    }
  }
}
