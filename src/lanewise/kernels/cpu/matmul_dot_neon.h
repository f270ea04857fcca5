// lw_dot for AArch64 with dot products, each token alone (included by matmul_dot.h).  Laws:
//  - sdot adds four products of signed bytes to an int32, without saturation: codes of up to 6 bits
//    are signed bytes already; 8-bit codes drop their bias by flipping the top bit;
//  - four registers hold the sixteen rows; a lane of an activation register is a group of four.
#pragma once

struct LwQuad {
  int32x4_t v[4];
};

template <int LANE> LW_INLINE void lw_sdot(LwQuad& acc, const int8x16_t w[4], int8x16_t a) {
  LW_UNROLL for (int i = 0; i < 4; ++i) acc.v[i] = vdotq_laneq_s32(acc.v[i], w[i], a, LANE);
}

template <int G, class F, int W, int T>
LW_INLINE void lw_dot_group(const LwBlock& blk, LwQuad hi[T], LwQuad lo[T],
                            const int8x16_t a[T][2 * W]) {
  lw_u32 codes = lw_group<F::KIND>(blk, G);
  if constexpr (F::KIND == LW_BYTES) codes ^= 0x80808080u;
  int8x16_t w[4];
  const int8x16_t* quarter = (const int8x16_t*)&codes;
  LW_UNROLL for (int i = 0; i < 4; ++i) w[i] = quarter[i];
  LW_UNROLL for (int t = 0; t < T; ++t) {
    if constexpr (W == 2) lw_sdot<G % 4>(hi[t], w, a[t][G / 4]);
    lw_sdot<G % 4>(lo[t], w, a[t][2 * (W - 1) + G / 4]);
  }
}

template <class F, int W, int T>
LW_INLINE void lw_dot_each(const LwBlock& blk, const LwRows<T>& x, int64_t b, lw_i32 z[T][2]) {
  int8x16_t a[T][2 * W];
  LW_UNROLL for (int t = 0; t < T; ++t) LW_UNROLL for (int i = 0; i < 2 * W; ++i)
    a[t][i] = vld1q_s8((const int8_t*)x.row[t] + b * (32 * W) + i * 16);
  LwQuad hi[T] = {}, lo[T] = {};
  LW_UNROLL for (int sub = 0; sub < F::SUBS; ++sub) {
    if (F::SUBS == 1 || sub == 0) {
      lw_dot_group<0, F, W, T>(blk, hi, lo, a);
      lw_dot_group<1, F, W, T>(blk, hi, lo, a);
      lw_dot_group<2, F, W, T>(blk, hi, lo, a);
      lw_dot_group<3, F, W, T>(blk, hi, lo, a);
    }
    if (F::SUBS == 1 || sub == 1) {
      lw_dot_group<4, F, W, T>(blk, hi, lo, a);
      lw_dot_group<5, F, W, T>(blk, hi, lo, a);
      lw_dot_group<6, F, W, T>(blk, hi, lo, a);
      lw_dot_group<7, F, W, T>(blk, hi, lo, a);
    }
    LW_UNROLL for (int t = 0; t < T; ++t) {
      int32x4_t out[4];
      LW_UNROLL for (int i = 0; i < 4; ++i) {
        out[i] = lo[t].v[i];
        if constexpr (W == 2) out[i] = vaddq_s32(out[i], vshlq_n_s32(hi[t].v[i], 7));
        hi[t].v[i] = lo[t].v[i] = vdupq_n_s32(0);
      }
      z[t][sub] = *(const lw_i32*)out;
      if constexpr (F::OFFSET != 0 && F::KIND != LW_BYTES)
        z[t][sub] += lw_alli(lw_negsum<F, T>(x, t, b, sub) * F::OFFSET);
    }
  }
}
