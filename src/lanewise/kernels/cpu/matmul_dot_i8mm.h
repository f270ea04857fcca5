// lw_dot for AArch64 with matrix products of bytes, two tokens at a time (included by
// matmul_dot.h).  Laws:
//  - usmmla adds [2 rows x 8 of K] * [2 tokens x 8 of K]: unsigned codes as they are by signed
//    words, four sums of eight products in int32, without saturation;
//  - a register of weights is two groups of four, zipped by 32-bit lanes; one of activations is
//    eight bytes of either token; one of sums is r0t0 r0t1 r1t0 r1t1 until the block is done;
//  - sums begin with the codes' bias; in two words a bias of 128 joins the upper one, whose sums
//    are shifted anyway.
#pragma once

// Sums of eight pairs of rows.
struct LwOctet {
  int32x4_t v[8];
};

// -sum(v) of tokens t and t + 1, as the sums hold them.
template <class F, int T>
LW_INLINE int32x4_t lw_pair_negsum(const LwRows<T>& x, int t, int64_t b, int sub) {
  return vzip1q_s32(vdupq_n_s32(lw_negsum<F, T>(x, t, b, sub)),
                    vdupq_n_s32(lw_negsum<F, T>(x, t + 1, b, sub)));
}

// Sixteen bytes of K of tokens t and t + 1: eight of either, then the other eight.
template <int T>
LW_INLINE void lw_pair_load(const LwRows<T>& x, int t, int64_t at, int8x16_t a[2]) {
  const int64x2_t even = vreinterpretq_s64_s8(vld1q_s8((const int8_t*)x.row[t] + at));
  const int64x2_t odd = vreinterpretq_s64_s8(vld1q_s8((const int8_t*)x.row[t + 1] + at));
  a[0] = vreinterpretq_s8_s64(vzip1q_s64(even, odd));
  a[1] = vreinterpretq_s8_s64(vzip2q_s64(even, odd));
}

// Groups g and g + 1 into every sum; a: the words of each pair of tokens.
template <class F, int W, int P>
LW_INLINE void lw_pair_groups(const LwBlock& blk, int g, LwOctet hi[P], LwOctet lo[P],
                              const int8x16_t a[W][P]) {
  const lw_u32 even = lw_group<F::KIND>(blk, g), odd = lw_group<F::KIND>(blk, g + 1);
  LW_UNROLL for (int q = 0; q < 4; ++q) {
    const uint32x4_t e = ((const lw_quarter*)&even)[q], o = ((const lw_quarter*)&odd)[q];
    const uint8x16_t w[2] = {vreinterpretq_u8_u32(vzip1q_u32(e, o)),
                             vreinterpretq_u8_u32(vzip2q_u32(e, o))};
    LW_UNROLL for (int r = 0; r < 2; ++r) LW_UNROLL for (int p = 0; p < P; ++p) {
      int32x4_t& l = lo[p].v[q * 2 + r];
      if constexpr (W == 2) {
        int32x4_t& h = hi[p].v[q * 2 + r];
        h = vusmmlaq_s32(h, w[r], a[0][p]);
      }
      l = vusmmlaq_s32(l, w[r], a[W - 1][p]);
    }
  }
}

template <class F, int W, int T>
LW_INLINE void lw_dot_pairs(const LwBlock& blk, const LwRows<T>& x, int64_t b, lw_i32 z[T][2]) {
  constexpr int per = 8 / F::SUBS, P = T / 2;
  constexpr bool upper = W == 2 && F::OFFSET == 128;
  LW_UNROLL for (int sub = 0; sub < F::SUBS; ++sub) {
    LwOctet hi[P] = {}, lo[P] = {};
    if constexpr (F::OFFSET != 0) LW_UNROLL for (int p = 0; p < P; ++p) {
      const int32x4_t n = lw_pair_negsum<F, T>(x, 2 * p, b, sub);
      LW_UNROLL for (int i = 0; i < 8; ++i)
        if constexpr (upper) hi[p].v[i] = n;
        else lo[p].v[i] = vshlq_n_s32(n, lw_bias<F>());
    }
    LW_UNROLL for (int g = sub * per; g < sub * per + per; g += 4) {
      int8x16_t a[2][W][P];
      LW_UNROLL for (int w = 0; w < W; ++w) LW_UNROLL for (int p = 0; p < P; ++p) {
        int8x16_t both[2];
        lw_pair_load<T>(x, 2 * p, b * (32 * W) + w * 32 + g * 4, both);
        a[0][w][p] = both[0], a[1][w][p] = both[1];
      }
      lw_pair_groups<F, W, P>(blk, g, hi, lo, a[0]);
      lw_pair_groups<F, W, P>(blk, g + 2, hi, lo, a[1]);
    }
    LW_UNROLL for (int p = 0; p < P; ++p) {
      int32x4_t out[2][4];
      LW_UNROLL for (int q = 0; q < 4; ++q) {
        int32x4_t s[2] = {lo[p].v[q * 2], lo[p].v[q * 2 + 1]};
        if constexpr (W == 2) LW_UNROLL for (int r = 0; r < 2; ++r)
          s[r] = vaddq_s32(s[r], vshlq_n_s32(hi[p].v[q * 2 + r], 7));
        out[0][q] = vuzp1q_s32(s[0], s[1]);
        out[1][q] = vuzp2q_s32(s[0], s[1]);
      }
      z[2 * p][sub] = *(const lw_i32_at*)out[0];
      z[2 * p + 1][sub] = *(const lw_i32_at*)out[1];
    }
  }
}
