// lw_dot for AVX2 (included by matmul_dot.h).  Laws:
//  - vpmaddubsw adds two products of an unsigned code and a signed word in int16, saturating, so
//    every depth here is proved not to reach 32767 (|hi| <= 127, |lo| <= 64, |int8| <= 127):
//      4 bits: 2 * 15 * 127 = 3810, 8 deep 30480        lo: 2 * 15 * 64 = 1920, 8 deep 15360
//      5 bits: 2 * 31 * 127 = 7874, 4 deep 31496        lo: 2 * 31 * 64 = 3968, 8 deep 31744
//      6 bits: 2 * 63 * 127 = 16002, 2 deep 32004       lo: 2 * 63 * 64 = 8064, 4 deep 32256
//    (a sub-block of q6_k is 4 deep); 8 bits would saturate at depth 1: words and vpmaddwd instead,
//    255 * 16256 * 2 per step, 16 steps < 2^31;
//  - the order multiply, multiply, add, add is pinned by one-instruction asm: left alone,
//    compilers hoist the broadcasts and spill (half the speed).
#pragma once

#define LW_OP2(NAME, TEXT)                                          \
  LW_INLINE __m256i NAME(__m256i a, __m256i b) {                    \
    __m256i r;                                                      \
    asm volatile(TEXT " %2, %1, %0" : "=x"(r) : "x"(a), "x"(b));    \
    return r;                                                       \
  }
LW_OP2(lw_maddubs, "vpmaddubsw")  // a: unsigned codes, b: signed words
LW_OP2(lw_madd16, "vpmaddwd")
LW_OP2(lw_add16, "vpaddw")
LW_OP2(lw_add32, "vpaddd")
#undef LW_OP2

LW_INLINE __m256i lw_all4(const void* p) {
  __m256i r;
  asm volatile("vpbroadcastd %1, %0" : "=x"(r) : "m"(*(const lw_i32_any*)p));
  return r;
}

LW_INLINE LwPair lw_pair_add32(LwPair x, __m256i a, __m256i b) {
  return {lw_add32(x.a, a), lw_add32(x.b, b)};
}

template <class F, int T>
LW_INLINE void lw_dot_words(const LwBlock& blk, const LwRows<T>& x, int64_t b, lw_i32 z[T][2]) {
  LwPair s[T];
  LW_UNROLL for (int g = 0; g < 8; ++g) {
    lw_u32 v = lw_group<F::KIND>(blk, g);
    LW_UNROLL for (int h = 0; h < 2; ++h) {
      LwPair u = lw_halves(h ? (lw_u32)((lw_u32)v >> 8) & 0x00ff00ffu : v & 0x00ff00ffu);
      LW_UNROLL for (int t = 0; t < T; ++t) {
        __m256i a = lw_all4(x.row[t] + x.plane.words + b * 64 + g * 8 + h * 4);
        __m256i p = lw_madd16(u.a, a), q = lw_madd16(u.b, a);
        if (g == 0 && h == 0) s[t] = {p, q};
        else s[t] = lw_pair_add32(s[t], p, q);
      }
    }
  }
  LW_UNROLL for (int t = 0; t < T; ++t)
    z[t][0] = lw_whole(s[t]) + lw_alli(lw_negsum<F, T>(x, t, b, 0) * F::OFFSET);
}

template <class F, int W, int T>
LW_INLINE void lw_dot(const LwBlock& blk, const LwRows<T>& x, int64_t b, lw_i32 z[T][2]) {
  if constexpr (F::KIND == LW_BYTES) {
    lw_dot_words<F, T>(blk, x, b, z);
  } else {
    constexpr int per = 8 / F::SUBS;
    constexpr int depth = F::KIND == LW_NIBBLES ? 8 : F::KIND == LW_BIT ? 4 : 2;
    const __m256i one = _mm256_set1_epi16(1), k128 = _mm256_set1_epi16(128);
    LW_UNROLL for (int sub = 0; sub < F::SUBS; ++sub) {
      LwPair hi[T], lo[T], s[T];
      LW_UNROLL for (int i = 0; i < per; ++i) {
        const int g = sub * per + i;
        LwPair u = lw_halves(lw_group<F::KIND>(blk, g));
        LW_UNROLL for (int t = 0; t < T; ++t) {
          const uint8_t* a = x.row[t] + b * (32 * W) + g * 4;
          __m256i v = lw_all4(a);
          __m256i p = lw_maddubs(u.a, v), q = lw_maddubs(u.b, v);
          if (i % depth == 0) hi[t] = {p, q};
          else hi[t] = {lw_add16(hi[t].a, p), lw_add16(hi[t].b, q)};
          if constexpr (W == 2) {
            v = lw_all4(a + 32);
            p = lw_maddubs(u.a, v), q = lw_maddubs(u.b, v);
            if (i == 0) lo[t] = {p, q};
            else lo[t] = {lw_add16(lo[t].a, p), lw_add16(lo[t].b, q)};
          }
          if (i % depth == depth - 1) {
            const __m256i m = W == 2 ? k128 : one;
            p = lw_madd16(hi[t].a, m), q = lw_madd16(hi[t].b, m);
            if (i < depth) s[t] = {p, q};
            else s[t] = lw_pair_add32(s[t], p, q);
          }
        }
      }
      LW_UNROLL for (int t = 0; t < T; ++t) {
        if constexpr (W == 2)
          s[t] = lw_pair_add32(s[t], lw_madd16(lo[t].a, one), lw_madd16(lo[t].b, one));
        z[t][sub] = lw_whole(s[t]);
        if constexpr (F::OFFSET != 0)
          z[t][sub] += lw_alli(lw_negsum<F, T>(x, t, b, sub) * F::OFFSET);
      }
    }
  }
}
