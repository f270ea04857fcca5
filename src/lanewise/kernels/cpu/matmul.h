// Products with packed weights: what a program sees.  Laws:
//  - y[r][c] = sum over k of w[c][k] * x[r][k], c an output column = a row of the packed matrix;
//  - the bits of an output depend on its format, activation kind and K alone (docs/recipes.md),
//    never on rows, col0, col1, granule or the instruction set;
//  - a product writes nothing itself: finished tiles go to the epilogue, from L1 where they fit.
// The bodies are in matmul_*.h, compiled once per (format, activation) from product.cpp.
#pragma once
#include <stdint.h>

// tile[r*ld + c], r < rows, c < cols: f32 outputs of token rows row0.., output columns col0...
// With a second matrix (w1): c in [0, cols) come from w, c in [cols, 2*cols) from w1, for the same
// output columns.  The tile is the kernel's scratch: it may be overwritten by the epilogue.  Rows
// are at most LW_ROWS.
typedef void (*lw_epilogue)(void* env, const float* tile, int64_t ld, int64_t row0, int32_t rows,
                            int64_t col0, int32_t cols);

// What may be chosen by measurement (lane/tune.py); no bit depends on it.  0: the kernel's own.
typedef struct {
  int32_t ahead;  // few rows: bytes of packed weights to prefetch ahead; negative: none
  int32_t units;  // many rows: panels that a pass over the rows holds, at most LW_UNITS
  int32_t chunk;  // many rows: chains of 512 of K of such a pass, at most LW_CHAINS
  int32_t pairs;  // rows from which tiles multiply in pairs (matmul_pairs.h); negative: never
} LwTuning;

typedef struct {
  const void* w;    // packed matrix
  const void* w1;   // a second one of the same format and shape (gate and up), or NULL
  const void* x;    // activation rows: quantised rows (quant.h), or f32 rows
  int64_t xstride;  // bytes between activation rows
  int64_t k, n, rows;   // logical sizes; rows = live rows, >= 0
  int64_t col0, col1;   // this thread's output columns: multiples of granule, but col1 may be n
  int64_t granule;      // multiple of 16, <= 256: columns of a tile (the last may be narrower)
  lw_epilogue epilogue;
  void* env;
  void* scratch;  // 64-aligned, one per thread, lw_matmul_scratch(k, granule) bytes
  const LwTuning* tuning;  // or NULL
} LwMatmul;

// Scratch, in bytes from its start: unpacked panels, their scales, mins and sums of pairs, the
// running totals of a column block, its mins, its finished outputs.
enum {
  LW_ROWS = 16,              // rows of a tile
  LW_UNITS = 4,              // panels unpacked together
  LW_CHAINS = 4,             // chains of K of a pass
  LW_NEAR = 1 << 19,         // bytes of activations that stay near
  LW_CELLS = 32768,          // (token, column) cells of a column block held at once
  LW_AT_SCALES = LW_UNITS * LW_CHAINS * 512 * 16 * 2,
  LW_AT_MINS = LW_AT_SCALES + LW_UNITS * LW_CHAINS * 32 * 64,
  LW_AT_PAIRS = LW_AT_MINS + LW_UNITS * LW_CHAINS * 16 * 64,
  LW_AT_TOTALS = LW_AT_PAIRS + LW_UNITS * LW_CHAINS * 32 * 64,
  LW_AT_MIN_TOTALS = LW_AT_TOTALS + LW_CELLS * 8,
  LW_AT_TILE = LW_AT_MIN_TOTALS + LW_CELLS * 4,
  LW_SCRATCH = LW_AT_TILE + LW_CELLS * 4
};
static inline int64_t lw_matmul_scratch(int64_t k, int64_t granule) {
  (void)k;
  (void)granule;
  return LW_SCRATCH;
}

#define LW_DECLARE_PRODUCT(FORMAT, ACT) extern "C" void lw_matmul_##FORMAT##_##ACT(const LwMatmul*);
#define LW_DECLARE_FLOAT(FORMAT) LW_DECLARE_PRODUCT(FORMAT, f32) LW_DECLARE_PRODUCT(FORMAT, f64)
#define LW_DECLARE_QUANT(FORMAT)        \
  LW_DECLARE_PRODUCT(FORMAT, int8x2)    \
  LW_DECLARE_PRODUCT(FORMAT, int8)      \
  LW_DECLARE_PRODUCT(FORMAT, f64)
#define LW_DECLARE_PACK(FORMAT)                                                                \
  extern "C" int64_t lw_packed_bytes_##FORMAT(int64_t n, int64_t k);                           \
  extern "C" void lw_pack_##FORMAT(const void* src, void* dst, int64_t n, int64_t k,           \
                                   int64_t panel0, int64_t panel1);                            \
  extern "C" void lw_gather_##FORMAT(const void* packed, int64_t n, int64_t k, int64_t row,    \
                                     float* out);
#define LW_FLOAT_FORMATS(X) X(f32) X(f16) X(bf16) X(f8_e4m3) X(f8_e5m2)
#define LW_QUANT_FORMATS(X) X(q8_0) X(q4_0) X(q4_1) X(q5_0) X(q5_1) X(q4_k) X(q5_k) X(q6_k)
LW_FLOAT_FORMATS(LW_DECLARE_FLOAT)
LW_QUANT_FORMATS(LW_DECLARE_QUANT)
LW_FLOAT_FORMATS(LW_DECLARE_PACK)
LW_QUANT_FORMATS(LW_DECLARE_PACK)
