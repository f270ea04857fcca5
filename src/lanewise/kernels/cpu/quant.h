// Activations as integers: one word (int8) or two (int8x2).  Laws:
//  - group = 32 elements along K; s = max|x| / 16256 (two words) or / 127 (one), f32 division;
//    v = round-half-even(x / s), by division; v = 128*hi + lo, -64 <= lo <= 63;
//  - a group with s below 2^-126 (max|x| < 2e-34, zeros included) is s = 0, v = 0: otherwise s
//    would be too coarse to hold 14 bits;
//  - a group holding an infinity or a NaN is s = NaN, v = 0: every product that reads it is NaN;
//  - |v| <= 16256 (127): max/s <= 16256 * (1 + 2^-23), which rounds to 16256; so |hi| <= 127.
// A row is planes over nb = K/32 blocks, each kernel reading those that it likes:
//  bytes  int8x2: 32 hi then 32 lo of every block; int8: 32 of every block (padded to 64)
//  words  int16 v, each 4 of K in the order 0 2 1 3 (what splitting packed bytes into words gives)
//  s f32[nb]; sv f32[nb] = fl(s * (float)sum v); n32 i32[nb] = -sum v; n16 i32[2 nb], per 16;
//  n8 i32[nb] = -8 sum v, the bias of codes of four bits as it is
#pragma once
#include "lanes.h"

#ifndef LW_QUANT_LINKAGE
#define LW_QUANT_LINKAGE static inline __attribute__((unused))
#endif

// Byte offsets of the planes of a row; W = words per element.
struct LwActs {
  int64_t words, s, sv, n32, n16, n8, bytes;
};

template <int W> LW_INLINE LwActs lw_acts(int64_t k) {
  int64_t nb = k / 32;
  LwActs a;
  a.words = lw_align64(nb * 32 * W);
  a.s = a.words + nb * 64;
  a.sv = a.s + nb * 4;
  a.n32 = a.sv + nb * 4;
  a.n16 = a.n32 + nb * 4;
  a.n8 = a.n16 + nb * 8;
  a.bytes = lw_align64(a.n8 + nb * 4);
  return a;
}

template <int W> LW_INLINE void lw_quantize_group(const float* x, int64_t b, int64_t k, void* row) {
  const LwActs plane = lw_acts<W>(k);
  uint8_t* p = (uint8_t*)row;
  lw_f32 x0 = lw_load(x), x1 = lw_load(x + 16);
  // The magnitude of a float orders like its bits, NaN above all: an exact maximum, no NaN rules.
  lw_u32 m0 = (lw_u32)x0 & 0x7fffffffu, m1 = (lw_u32)x1 & 0x7fffffffu;
  uint32_t top = __builtin_reduce_max(__builtin_elementwise_max(m0, m1));
  union { uint32_t u; float f; } largest = {top}, s;
  s.f = largest.f / (W == 2 ? 16256.0f : 127.0f);
  lw_i32 v0 = {}, v1 = {};
  if (top >= 0x7f800000u) {
    s.u = 0x7fc00000u;
  } else if (s.u < 0x00800000u) {
    s.u = 0;
  } else {
    // Adding 1.5 * 2^23 rounds half to even at the units and leaves the integer in the low bits.
    const float magic = 12582912.0f;
    v0 = (lw_i32)(x0 / s.f + magic) - 0x4b400000;
    v1 = (lw_i32)(x1 / s.f + magic) - 0x4b400000;
  }
  lw_i16 w0 = __builtin_convertvector(v0, lw_i16), w1 = __builtin_convertvector(v1, lw_i16);
  w0 = __builtin_shufflevector(w0, w0, 0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
  w1 = __builtin_shufflevector(w1, w1, 0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
  *(lw_i16_at*)(p + plane.words + b * 64) = w0;
  *(lw_i16_at*)(p + plane.words + b * 64 + 32) = w1;
  if constexpr (W == 2) {
    lw_i32 h0 = (v0 + 64) >> 7, h1 = (v1 + 64) >> 7;
    *(lw_i8_at*)(p + b * 64) = __builtin_convertvector(h0, lw_i8);
    *(lw_i8_at*)(p + b * 64 + 16) = __builtin_convertvector(h1, lw_i8);
    *(lw_i8_at*)(p + b * 64 + 32) = __builtin_convertvector(v0 - (h0 << 7), lw_i8);
    *(lw_i8_at*)(p + b * 64 + 48) = __builtin_convertvector(v1 - (h1 << 7), lw_i8);
  } else {
    *(lw_i8_at*)(p + b * 32) = __builtin_convertvector(v0, lw_i8);
    *(lw_i8_at*)(p + b * 32 + 16) = __builtin_convertvector(v1, lw_i8);
  }
  int32_t t0 = __builtin_reduce_add(v0), t1 = __builtin_reduce_add(v1);
  *(lw_f32_any*)(p + plane.s + b * 4) = s.f;
  *(lw_f32_any*)(p + plane.sv + b * 4) = s.f * (float)(t0 + t1);
  *(lw_i32_any*)(p + plane.n32 + b * 4) = -(t0 + t1);
  *(lw_i32_any*)(p + plane.n8 + b * 4) = -8 * (t0 + t1);
  *(lw_i32_any*)(p + plane.n16 + b * 8) = -t0;
  *(lw_i32_any*)(p + plane.n16 + b * 8 + 4) = -t1;
}

// The public names.  x: f32[k] (a whole row) or f32[32] (block `b` of a row of k); row: the
// opaque row, lw_act_bytes_* bytes, 64-aligned.
#define LW_QUANTIZE(NAME, W)                                                                      \
  LW_QUANT_LINKAGE int64_t lw_act_bytes_##NAME(int64_t k) { return lw_acts<W>(k).bytes; }         \
  LW_QUANT_LINKAGE void lw_quantize_block_##NAME(const float* x, int64_t b, int64_t k, void* row) {\
    lw_quantize_group<W>(x, b, k, row);                                                           \
  }                                                                                               \
  LW_QUANT_LINKAGE void lw_quantize_##NAME(const float* x, int64_t k, void* row) {                \
    for (int64_t b = 0; b < k / 32; ++b) lw_quantize_group<W>(x + b * 32, b, k, row);             \
  }
LW_QUANTIZE(int8x2, 2)
LW_QUANTIZE(int8, 1)
