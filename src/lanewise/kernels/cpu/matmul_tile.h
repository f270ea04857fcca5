// Tiles of a quantised product.  Laws (law 2 made code; the only places where floats are added):
//  - a chain covers 512 of K (16 blocks) from zero: acc = fma((float)z, fl(d_w * d_x), acc),
//    ascending; mins in a second chain, accm = fma(m_w, sv, accm);
//  - chains are added ascending; the first is taken as it is; result = total + totalm;
//  - lanes are output rows; T tokens share what is loaded of the weights.
// lw_chain: one panel, straight from its packed form.  A panel is one forward stream and the next
// panel follows it, which is what hardware prefetchers want: on Zen 4, two panels in flight or
// software prefetch were 10 to 50 % slower for one token; only a jump elsewhere is prefetched.
#pragma once
#include "matmul.h"
#include "matmul_dot.h"

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
