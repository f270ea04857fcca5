// Packed formats.  Laws:
//  - a matrix is panels of 16 rows (the last padded with zero rows), a panel is records ascending
//    in K, so a panel and its successor are one forward stream; records are multiples of 64 bytes
//    (q4_0, q5_0, q8_0: two blocks of 32 per record; a last single block is half of one);
//  - a record is its scales, then each block's codes and high bits: bytes are met in their order
//    (scales behind the codes cost a fifth of the rate);
//  - inside, lane = row: a vector of 64 bytes is 16 rows x 4 of K ("group"; 8 groups per block);
//      nibbles  4 vectors: low half = group 2j, high half = group 2j+1
//      bit 5    1 vector: bit g of a byte belongs to group g
//      bits 5,6 2 vectors: bits 2(g%4).. of vector g/4 belong to group g
//      bytes    8 vectors, biased by 128
//      scales, lane = row: f16 d[16] (, m[16]); k-quants: f16 d, dmin, u8 scale[8][16], min[8][16];
//      q6_k: i8 scale[16][16], f16 d[16], 32 bytes of padding
//  - codes are unsigned; a weight is (code - OFFSET) * scale + minimum.
#pragma once
#include "lanes.h"
#include "vec_half.h"

// One block of 32 of K in a panel.
struct LwBlock {
  const uint8_t* q;  // nibbles or bytes
  const uint8_t* h;  // high bits
  const uint8_t* s;  // scales of the block, or of its record of 256
  int i;             // which block of the record
};

// Chains of sums restart every 512 of K (docs/recipes.md).
enum { LW_CHAIN = 512, LW_CHAIN_BLOCKS = LW_CHAIN / 32 };

enum { LW_NIBBLES = 0, LW_BIT = 1, LW_TWO_BITS = 2, LW_BYTES = 3 };

#if defined(LW_NEON)
// Bytes are shifted as bytes, and high bits inserted above the low four: fewer steps than masks.
template <int KIND> LW_INLINE lw_u32 lw_group(const LwBlock& b, int g) {
  typedef uint8_t bytes __attribute__((vector_size(64)));
  if constexpr (KIND == LW_BYTES) return lw_load_bytes(b.q + g * 64);
  const bytes both = (bytes)lw_load_bytes(b.q + (g / 2) * 64);
  const bytes low = g & 1 ? both >> 4 : both;
  if constexpr (KIND == LW_NIBBLES) return (lw_u32)(g & 1 ? low : low & 15);
  const int bits = KIND == LW_BIT ? 1 : 2, per = 8 / bits;
  const bytes high = (bytes)lw_load_bytes(b.h + g / per * 64) >> (uint8_t)(g % per * bits);
  bytes v;
  LW_UNROLL for (int i = 0; i < 4; ++i)
    ((lw_quarter_bytes*)&v)[i] = vsliq_n_u8(((const lw_quarter_bytes*)&low)[i],
                                            ((const lw_quarter_bytes*)&high)[i], 4);
  return (lw_u32)(v & (uint8_t)(KIND == LW_BIT ? 31 : 63));
}
#else
template <int KIND> LW_INLINE lw_u32 lw_group(const LwBlock& b, int g) {
  if constexpr (KIND == LW_BYTES) {
    return lw_load_bytes(b.q + g * 64);
  } else {
    lw_u32 v = lw_load_bytes(b.q + (g / 2) * 64);
    v = (g & 1 ? v >> 4 : v) & 0x0f0f0f0fu;
    if constexpr (KIND == LW_BIT) {
      lw_u32 h = lw_load_bytes(b.h);
      v |= (g < 4 ? h << (4 - g) : h >> (g - 4)) & 0x10101010u;
    }
    if constexpr (KIND == LW_TWO_BITS) {
      lw_u32 h = lw_load_bytes(b.h + (g / 4) * 64);
      const int r = g & 3;
      v |= (r < 2 ? h << (4 - 2 * r) : h >> (2 * r - 4)) & 0x30303030u;
    }
    return v;
  }
}
#endif

LW_INLINE lw_f32 lw_small(const uint8_t* p) {
  return lw_float((lw_i32)__builtin_convertvector(*(const lw_u8_at*)p, lw_u32));
}
LW_INLINE lw_f32 lw_small_signed(const uint8_t* p) {
  return lw_float(__builtin_convertvector(*(const lw_i8_at*)p, lw_i32));
}

// Formats with one f16 scale (and minimum) per 32.  QB: bytes of codes of a block.
template <int KIND_, int OFFSET_, bool MINS_, int SOURCE_> struct LwSimple {
  enum {
    KIND = KIND_, OFFSET = OFFSET_, SUBS = 1, K = 32, SOURCE = SOURCE_,
    NIB = KIND == LW_BYTES ? 512 : 256, HIGH = KIND == LW_BIT ? 64 : 0,
    QB = NIB + HIGH, SB = MINS_ ? 64 : 32, BLOCK = QB + SB
  };
  static constexpr bool MINS = MINS_;
  LW_INLINE_MEMBER int64_t panel(int64_t k) { return k / 32 * BLOCK; }
  LW_INLINE_MEMBER LwBlock block(const uint8_t* p, int64_t b, int64_t nb) {
    if constexpr (BLOCK % 64 == 0) {
      const uint8_t* q = p + b * BLOCK + SB;
      return {q, q + NIB, q - SB, 0};
    } else {
      const uint8_t* r = p + (b >> 1) * (2 * BLOCK);
      const int64_t odd = b & 1, pair = ((b | 1) < nb) ? 1 : 0;
      const uint8_t* q = r + (SB << pair) + odd * QB;
      return {q, q + NIB, r + odd * SB, 0};
    }
  }
  LW_INLINE_MEMBER lw_f32 scale(const LwBlock& b, int) { return lw_half(b.s); }
  LW_INLINE_MEMBER lw_f32 minimum(const LwBlock& b) {
    if constexpr (MINS_) return lw_half(b.s + 32);
    return lw_f32{};
  }
};

// q4_k, q5_k: super-blocks of 256; scale = fl(d * sc), minimum = -fl(dmin * m).
template <int KIND_, int SOURCE_> struct LwSuper {
  enum {
    KIND = KIND_, OFFSET = 0, SUBS = 1, K = 256, SOURCE = SOURCE_,
    QB = 256 + (KIND == LW_BIT ? 64 : 0), SB = 64 + 256, RECORD = SB + 8 * QB,
    BLOCK = RECORD / 8
  };
  static constexpr bool MINS = true;
  LW_INLINE_MEMBER int64_t panel(int64_t k) { return k / 256 * RECORD; }
  LW_INLINE_MEMBER LwBlock block(const uint8_t* p, int64_t b, int64_t) {
    const uint8_t* r = p + (b >> 3) * RECORD;
    const int i = (int)(b & 7);
    return {r + SB + i * QB, r + SB + i * QB + 256, r, i};
  }
  LW_INLINE_MEMBER lw_f32 scale(const LwBlock& b, int) {
    return lw_half(b.s) * lw_small(b.s + 64 + b.i * 16);
  }
  LW_INLINE_MEMBER lw_f32 minimum(const LwBlock& b) {
    return -(lw_half(b.s + 32) * lw_small(b.s + 192 + b.i * 16));
  }
};

// q6_k: a signed scale per 16, so two sub-blocks in every block.
struct LwSix {
  enum {
    KIND = LW_TWO_BITS, OFFSET = 32, SUBS = 2, K = 256, SOURCE = 210,
    QB = 256 + 128, SB = 256 + 64, RECORD = SB + 8 * QB, BLOCK = RECORD / 8
  };
  static constexpr bool MINS = false;
  LW_INLINE_MEMBER int64_t panel(int64_t k) { return k / 256 * RECORD; }
  LW_INLINE_MEMBER LwBlock block(const uint8_t* p, int64_t b, int64_t) {
    const uint8_t* r = p + (b >> 3) * RECORD;
    const int i = (int)(b & 7);
    return {r + SB + i * QB, r + SB + i * QB + 256, r, i};
  }
  LW_INLINE_MEMBER lw_f32 scale(const LwBlock& b, int sub) {
    return lw_half(b.s + 256) * lw_small_signed(b.s + (b.i * 2 + sub) * 16);
  }
  LW_INLINE_MEMBER lw_f32 minimum(const LwBlock&) { return lw_f32{}; }
};

// Float formats: one vector of 16 rows per element of K.
template <int BYTES_, bool BRAIN_> struct LwPlain {
  enum { BYTES = BYTES_, K = 1, SOURCE = BYTES_ };
  static constexpr bool BRAIN = BRAIN_;
  LW_INLINE_MEMBER int64_t panel(int64_t k) { return lw_align64(k * 16 * BYTES); }  // any K
  LW_INLINE_MEMBER lw_f32 at(const uint8_t* panel, int64_t k) {
    const uint8_t* p = panel + k * (16 * BYTES);
    if constexpr (BYTES == 4) return lw_load(p);
    if constexpr (BRAIN) return lw_bfloat(p);
    return lw_half(p);
  }
};

// The same of bytes, F as vec_half.h has it.
template <class F> struct LwPlain8 {
  enum { BYTES = 1, K = 1, SOURCE = 1 };
  static constexpr bool BRAIN = false;
  LW_INLINE_MEMBER int64_t panel(int64_t k) { return lw_align64(k * 16); }
  LW_INLINE_MEMBER float one(const uint8_t* p) { return lw_f8_to_f32<F>(*p); }
  // By binary16: e5m2 is its upper half; e4m3 in its bits is 2^-8 of what it says, but for NaN.
  LW_INLINE_MEMBER lw_f32 at(const uint8_t* panel, int64_t k) {
    const lw_u16 h = __builtin_convertvector(*(const lw_u8_at*)(panel + k * 16), lw_u16);
    const lw_u16 m = h & 0x7fu, half = (m << (F::M == 2 ? 8 : 7)) | (h & 0x80u) << 8;
    const lw_f32 v = lw_half(&half);
    if constexpr (F::M == 2) return v;
    const lw_u32 nan = (lw_u32)__builtin_convertvector((lw_i16)(m == 0x7fu), lw_i32);
    return (lw_f32)((lw_u32)(v * 256.0f) | (nan & 0x7fc00000u));
  }
};

typedef LwPlain<4, false> lw_format_f32;
typedef LwPlain<2, false> lw_format_f16;
typedef LwPlain<2, true> lw_format_bf16;
typedef LwPlain8<lw_e4m3> lw_format_f8_e4m3;
typedef LwPlain8<lw_e5m2> lw_format_f8_e5m2;
typedef LwSimple<LW_BYTES, 128, false, 34> lw_format_q8_0;
typedef LwSimple<LW_NIBBLES, 8, false, 18> lw_format_q4_0;
typedef LwSimple<LW_NIBBLES, 0, true, 20> lw_format_q4_1;
typedef LwSimple<LW_BIT, 16, false, 22> lw_format_q5_0;
typedef LwSimple<LW_BIT, 0, true, 24> lw_format_q5_1;
typedef LwSuper<LW_NIBBLES, 144> lw_format_q4_k;
typedef LwSuper<LW_BIT, 176> lw_format_q5_k;
typedef LwSix lw_format_q6_k;

template <class F> LW_INLINE constexpr bool lw_is_float() { return F::K == 1; }

// Element e (0..3) of a group as f32 weights: exactly what the format's decoder says.
template <class F> LW_INLINE lw_f32 lw_decode(lw_u32 group, int e, lw_f32 scale, lw_f32 minimum) {
  lw_f32 code = lw_float((lw_i32)((group >> (8 * e)) & 255u) - (int32_t)F::OFFSET);
  lw_f32 w = code * scale;
  if constexpr (F::MINS) w = w + minimum;
  return w;
}
