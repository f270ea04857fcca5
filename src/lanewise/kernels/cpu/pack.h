// GGUF rows to packed panels and back to f32 rows.  Laws:
//  - packing moves codes and scales, it computes nothing; rows past n are zero bytes (scale 0);
//  - threads split panels; a panel is written by one thread, whole;
//  - gather decodes a row bit for bit as the format says (f32; k-quants multiply their two scales
//    first), from the packed bytes: a tied head and its embedding are one copy.
#pragma once
#include "matmul_formats.h"

template <class F> LW_INLINE int64_t lw_packed_bytes(int64_t n, int64_t k) {
  return lw_align64((n + 15) / 16 * F::panel(k));
}

// The 32 codes of sub-block i of a source block, as 8 words of 4 ascending codes.
template <class F> LW_INLINE void lw_codes(const uint8_t* s, int i, uint32_t c[8]) {
  enum { QUARTER = 0x0f0f0f0f };
  if constexpr (F::KIND == LW_BYTES) {
    for (int g = 0; g < 8; ++g) c[g] = lw_load_u32(s + 2 + g * 4) ^ 0x80808080u;
  } else if constexpr (F::K == 32) {
    const uint8_t* q = s + F::SOURCE - 16;
    for (int g = 0; g < 4; ++g) {
      c[g] = lw_load_u32(q + g * 4) & QUARTER;
      c[g + 4] = (lw_load_u32(q + g * 4) >> 4) & QUARTER;
    }
    if constexpr (F::KIND == LW_BIT) {
      // Bit j of the 32 belongs to code j: four bits spread to the fifth bit of four bytes.
      const uint32_t h = lw_load_u32(q - 4);
      for (int g = 0; g < 8; ++g) {
        const uint32_t four = h >> (4 * g);
        c[g] |= (four & 1) << 4 | (four & 2) << 11 | (four & 4) << 18 | (four & 8) << 25;
      }
    }
  } else if constexpr (F::KIND == LW_TWO_BITS) {
    const int half = i / 4, r = i % 4;
    const uint8_t* q = s + half * 64 + (r & 1) * 32;
    for (int g = 0; g < 8; ++g) {
      const uint32_t h = (lw_load_u32(s + 128 + half * 32 + g * 4) >> (2 * r)) & 0x03030303u;
      c[g] = ((lw_load_u32(q + g * 4) >> (r & 2 ? 4 : 0)) & QUARTER) | h << 4;
    }
  } else {
    const uint8_t* q = s + F::SOURCE - 128 + (i / 2) * 32;
    for (int g = 0; g < 8; ++g) {
      c[g] = (lw_load_u32(q + g * 4) >> (i & 1 ? 4 : 0)) & QUARTER;
      if constexpr (F::KIND == LW_BIT)
        c[g] |= ((lw_load_u32(s + 16 + g * 4) >> i) & 0x01010101u) << 4;
    }
  }
}

// The 6-bit scale and minimum of sub-block i of a q4_k or q5_k block.
LW_INLINE void lw_six(const uint8_t* s, int i, uint8_t* scale, uint8_t* minimum) {
  const uint8_t* p = s + 4;
  if (i < 4) {
    *scale = p[i] & 63;
    *minimum = p[i + 4] & 63;
  } else {
    *scale = (uint8_t)((p[i + 4] & 15) | (p[i - 4] >> 6) << 4);
    *minimum = (uint8_t)((p[i + 4] >> 4) | (p[i] >> 6) << 4);
  }
}

// Lane r of a block: codes and high bits.
template <class F> LW_INLINE void lw_place(const LwBlock& b, int r, const uint32_t c[8]) {
  uint8_t* q = (uint8_t*)b.q + r * 4;
  uint8_t* h = (uint8_t*)b.h + r * 4;
  if constexpr (F::KIND == LW_BYTES) {
    for (int g = 0; g < 8; ++g) lw_store_u32(q + g * 64, c[g]);
  } else {
    for (int j = 0; j < 4; ++j)
      lw_store_u32(q + j * 64, (c[2 * j] & 0x0f0f0f0fu) | (c[2 * j + 1] & 0x0f0f0f0fu) << 4);
  }
  if constexpr (F::KIND == LW_BIT) {
    uint32_t bits = 0;
    for (int g = 0; g < 8; ++g) bits |= (c[g] >> 4 & 0x01010101u) << g;
    lw_store_u32(h, bits);
  }
  if constexpr (F::KIND == LW_TWO_BITS) {
    for (int a = 0; a < 2; ++a) {
      uint32_t bits = 0;
      for (int g = 0; g < 4; ++g) bits |= (c[a * 4 + g] >> 4 & 0x03030303u) << (2 * g);
      lw_store_u32(h + a * 64, bits);
    }
  }
}

// Lane r of the scales that belong to source block s (all sub-blocks of it).
template <class F> LW_INLINE void lw_place_scales(const LwBlock& b, int r, const uint8_t* s) {
  uint8_t* to = (uint8_t*)b.s;
  if constexpr (F::K == 32) {
    lw_store_u16(to + r * 2, lw_load_u16(s));
    if constexpr (F::MINS) lw_store_u16(to + 32 + r * 2, lw_load_u16(s + 2));
  } else if constexpr (F::KIND == LW_TWO_BITS) {
    for (int j = 0; j < 16; ++j) to[j * 16 + r] = s[192 + j];
    lw_store_u16(to + 256 + r * 2, lw_load_u16(s + 208));
  } else {
    lw_store_u16(to + r * 2, lw_load_u16(s));
    lw_store_u16(to + 32 + r * 2, lw_load_u16(s + 2));
    for (int j = 0; j < 8; ++j) lw_six(s, j, to + 64 + j * 16 + r, to + 192 + j * 16 + r);
  }
}

template <class F>
LW_NOINLINE void lw_pack_panel(const uint8_t* src, uint8_t* panel, int64_t live, int64_t k) {
  const int64_t nb = k / 32;
  if constexpr (lw_is_float<F>()) {
    const int64_t row_bytes = k * F::BYTES;
    for (int64_t i = 0; i < k; ++i)
      for (int64_t r = 0; r < live; ++r) {
        const uint8_t* s = src + r * row_bytes + i * F::BYTES;
        uint8_t* to = panel + (i * 16 + r) * F::BYTES;
        if constexpr (F::BYTES == 4) lw_store_u32(to, lw_load_u32(s));
        else if constexpr (F::BYTES == 2) lw_store_u16(to, lw_load_u16(s));
        else *to = *s;
      }
  } else {
    enum { PER = F::K / 32 };
    const int64_t row_bytes = k / F::K * F::SOURCE;
    for (int64_t b = 0; b < nb; b += PER)
      for (int64_t r = 0; r < live; ++r) {
        const uint8_t* s = src + r * row_bytes + b / PER * F::SOURCE;
        for (int i = 0; i < PER; ++i) {
          uint32_t c[8];
          lw_codes<F>(s, i, c);
          lw_place<F>(F::block(panel, b + i, nb), (int)r, c);
        }
        lw_place_scales<F>(F::block(panel, b, nb), (int)r, s);
      }
  }
}

// src: n rows of k, row-major GGUF blocks; dst: lw_packed_bytes, 64-aligned.
template <class F>
LW_INLINE void lw_pack(const uint8_t* src, uint8_t* dst, int64_t n, int64_t k, int64_t panel0,
                       int64_t panel1) {
  const int64_t bytes = F::panel(k), row_bytes = k / F::K * F::SOURCE;
  for (int64_t p = panel0; p < panel1; ++p) {
    uint8_t* panel = dst + p * bytes;
    const int64_t live = lw_min64(16, n - p * 16);
    if (live < 16 || F::K == 256) lw_zero(panel, bytes);
    lw_pack_panel<F>(src + p * 16 * row_bytes, panel, live, k);
  }
  // The padding after an odd last panel belongs to whoever packs that panel.
  const int64_t panels = (n + 15) / 16;
  if (panel1 == panels && panel1 > panel0)
    lw_zero(dst + panels * bytes, lw_packed_bytes<F>(n, k) - panels * bytes);
}

// One lane of lw_group, F::scale and F::minimum.
template <int KIND> LW_INLINE uint32_t lw_group1(const LwBlock& b, int g, int r) {
  if constexpr (KIND == LW_BYTES) {
    return lw_load_u32(b.q + g * 64 + r * 4);
  } else {
    uint32_t c = (lw_load_u32(b.q + g / 2 * 64 + r * 4) >> (g & 1 ? 4 : 0)) & 0x0f0f0f0fu;
    if constexpr (KIND == LW_BIT) c |= (lw_load_u32(b.h + r * 4) >> g & 0x01010101u) << 4;
    if constexpr (KIND == LW_TWO_BITS)
      c |= (lw_load_u32(b.h + g / 4 * 64 + r * 4) >> (2 * (g & 3)) & 0x03030303u) << 4;
    return c;
  }
}
template <class F> LW_INLINE float lw_scale1(const LwBlock& b, int sub, int r) {
  if constexpr (F::K == 32) return lw_half1(b.s + r * 2);
  else if constexpr (F::SUBS == 2)
    return lw_half1(b.s + 256 + r * 2) * (float)(int8_t)b.s[(b.i * 2 + sub) * 16 + r];
  else return lw_half1(b.s + r * 2) * (float)b.s[64 + b.i * 16 + r];
}
template <class F> LW_INLINE float lw_minimum1(const LwBlock& b, int r) {
  if constexpr (!F::MINS) return 0.0f;
  else if constexpr (F::K == 32) return lw_half1(b.s + 32 + r * 2);
  else return -(lw_half1(b.s + 32 + r * 2) * (float)b.s[192 + b.i * 16 + r]);
}

// out: f32[k], the decoded row.
template <class F>
LW_INLINE void lw_gather(const uint8_t* packed, int64_t k, int64_t row, float* out) {
  const int64_t nb = k / 32;
  const uint8_t* panel = packed + row / 16 * F::panel(k);
  const int r = (int)(row % 16);
  if constexpr (lw_is_float<F>()) {
    LW_ROLL for (int64_t i = 0; i < k; ++i) {
      const uint8_t* s = panel + (i * 16 + r) * F::BYTES;
      if constexpr (F::BYTES == 4) lw_store_u32(out + i, lw_load_u32(s));
      else if constexpr (F::BYTES == 1) out[i] = F::one(s);
      else if constexpr (F::BRAIN) lw_store_u32(out + i, (uint32_t)lw_load_u16(s) << 16);
      else out[i] = lw_half1(s);
    }
  } else {
    LW_ROLL for (int64_t b = 0; b < nb; ++b) {
      const LwBlock blk = F::block(panel, b, nb);
      LW_ROLL for (int g = 0; g < 8; ++g) {
        const float d = lw_scale1<F>(blk, g * F::SUBS / 8, r), m = lw_minimum1<F>(blk, r);
        const uint32_t codes = lw_group1<F::KIND>(blk, g, r);
        LW_UNROLL for (int e = 0; e < 4; ++e) {
          float w = (float)((int32_t)(codes >> (8 * e) & 255u) - (int32_t)F::OFFSET) * d;
          if constexpr (F::MINS) w = w + m;
          out[b * 32 + g * 4 + e] = w;
        }
      }
    }
  }
}
