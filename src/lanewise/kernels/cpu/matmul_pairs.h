// Sums of a tile on AVX-512, two words: inner products in pairs (part of matmul_unpacked.h).  Laws:
//  - w0*v0 + w1*v1 = (w0 + v1) * (w1 + v0) - w0*w1 - v0*v1 (Winograd, "A new algorithm for inner
//    product", 1968): one multiplication and two additions for two; where a core adds twice as
//    often as it multiplies (Zen 4: 2 and 1 vectors a cycle) that is a third faster, and with some
//    fours left as they are (LW_PAIRED), which fill the multipliers, faster still: 37 instead of
//    28 multiply-adds a cycle;
//  - w0*w1 is summed where weights are unpacked, v0*v1 where activations are made, both negated: a
//    sum starts from them;
//  - |w + v| <= 128 + 16256 fits a word; products and sums wrap, and a sum of a block is below
//    2^31 (matmul_dot.h), so what is left modulo 2^32 is exact.
#pragma once

enum { LW_PAIRS_ROWS = 32 };

LW_INLINE constexpr bool lw_paired(int g) { return LW_PAIRED >> g & 1; }

// One asm each: compilers make two slower instructions of what they are told to be one.
LW_INLINE void lw_add_products(lw_i32& z, lw_u32 w, lw_u32 v) {
  asm("vpdpwssd %2, %1, %0" : "+v"(z) : "v"(w), "v"(v));
}
LW_INLINE void lw_add_products(lw_i32& z, lw_u32 w, const void* two) {
  asm("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(z) : "v"(w), "m"(*(const lw_i32_any*)two));
}
LW_INLINE lw_u32 lw_add_words(lw_u32 a, lw_u32 b) {
  return (lw_u32)_mm512_add_epi16((__m512i)a, (__m512i)b);
}
LW_INLINE lw_u32 lw_all_words(const void* two) {
  lw_u32 v;
  asm("vpbroadcastd %1, %0" : "=v"(v) : "m"(*(const lw_i32_any*)two));
  return v;
}

// Of block i, whose words are there.
template <class F> LW_INLINE void lw_unpack_pairs(const LwUnpacked<F>& to, int64_t i) {
  constexpr int per = 8 / F::SUBS;
  LW_UNROLL for (int sub = 0; sub < F::SUBS; ++sub) {
    __m512i sum = _mm512_setzero_si512();
    LW_UNROLL for (int g = sub * per; g < (sub + 1) * per; ++g)
      if (lw_paired(g))
        sum = _mm512_sub_epi32(sum, _mm512_madd_epi16((__m512i)to.words[i * 16 + g * 2],
                                                      (__m512i)to.words[i * 16 + g * 2 + 1]));
    to.pairs[i * F::SUBS + sub] = (lw_i32)sum;
  }
}

// The sums of sub-block `sub` of block i of what is unpacked, which is block b of the rows.
template <class F, int W, int P, int T>
LW_INLINE void lw_tile_sums(const LwUnpacked<F> (&w)[P], const LwRows<T>& x, int64_t b, int64_t i,
                            int sub, lw_i32 (&z)[P][T]) {
  static_assert(W == 2, "one word is as fast from its bytes");
  constexpr int per = 8 / F::SUBS;
  LW_UNROLL for (int p = 0; p < P; ++p) {
    const __m512i of = (__m512i)w[p].pairs[i * F::SUBS + sub];
    LW_UNROLL for (int t = 0; t < T; ++t) {
      const int64_t at = F::SUBS == 1 ? x.plane.p32 + b * 4 : x.plane.p16 + b * 8 + sub * 4;
      const int32_t ours = *(const lw_i32_any*)(x.row[t] + at);
      z[p][t] = (lw_i32)_mm512_add_epi32(of, _mm512_set1_epi32(ours));
    }
  }
  LW_UNROLL for (int g = sub * per; g < (sub + 1) * per; ++g) {
    lw_u32 even[P], odd[P];  // K 0 and 2, 1 and 3 of a four
    LW_UNROLL for (int p = 0; p < P; ++p) {
      even[p] = w[p].words[i * 16 + g * 2];
      odd[p] = w[p].words[i * 16 + g * 2 + 1];
      asm("" : "+v"(even[p]), "+v"(odd[p]));
    }
    LW_UNROLL for (int t = 0; t < T; ++t) {
      const uint8_t* at = x.row[t] + x.plane.words + b * 64 + g * 8;
      if (lw_paired(g)) {
        const lw_u32 v02 = lw_all_words(at), v13 = lw_all_words(at + 4);
        LW_UNROLL for (int p = 0; p < P; ++p)
          lw_add_products(z[p][t], lw_add_words(even[p], v13), lw_add_words(odd[p], v02));
      } else LW_UNROLL for (int p = 0; p < P; ++p) {
        lw_add_products(z[p][t], even[p], at);
        lw_add_products(z[p][t], odd[p], at + 4);
      }
    }
  }
}

// AMD's cores add twice as often as they multiply; others were not measured.
LW_INLINE bool lw_is_amd() {
  static int32_t known = 0;
  int32_t is = __atomic_load_n(&known, __ATOMIC_RELAXED);
  if (is == 0) {
    uint32_t a = 0, b, c = 0, d;
    asm volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
    is = b == 0x68747541 && d == 0x69746e65 && c == 0x444d4163 ? 1 : -1;  // AuthenticAMD
    __atomic_store_n(&known, is, __ATOMIC_RELAXED);
  }
  return is > 0;
}

// Whether so many rows pay for unpacking (Zen 4: from 32 on).
LW_INLINE bool lw_pairs_pay(const LwMatmul* m) {
  const int32_t from = m->tuning ? m->tuning->pairs : 0;
  if (from != 0) return from > 0 && m->rows >= from;
  return m->rows >= LW_PAIRS_ROWS && lw_is_amd();
}
