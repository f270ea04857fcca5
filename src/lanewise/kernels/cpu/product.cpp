// One object per (format, activation): -DLW_FORMAT=q4_1 -DLW_ACT=int8x2 defines exactly
// lw_matmul_q4_1_int8x2; -DLW_FORMAT=q4_1 -DLW_PACK defines lw_packed_bytes_, lw_pack_ and
// lw_gather_q4_1.  (May be included several times by one unit, each time with other definitions.)
#define LW_JOIN_(a, b) a##b
#define LW_JOIN(a, b) LW_JOIN_(a, b)
#define LW_THIS LW_JOIN(lw_format_, LW_FORMAT)

#if defined(LW_PACK)

#include "pack.h"

LW_API int64_t LW_JOIN(lw_packed_bytes_, LW_FORMAT)(int64_t n, int64_t k) {
  return lw_packed_bytes<LW_THIS>(n, k);
}
LW_API void LW_JOIN(lw_pack_, LW_FORMAT)(const void* src, void* dst, int64_t n, int64_t k,
                                         int64_t panel0, int64_t panel1) {
  lw_pack<LW_THIS>((const uint8_t*)src, (uint8_t*)dst, n, k, panel0, panel1);
}
LW_API void LW_JOIN(lw_gather_, LW_FORMAT)(const void* packed, int64_t n, int64_t k, int64_t row,
                                           float* out) {
  (void)n;
  lw_gather<LW_THIS>((const uint8_t*)packed, k, row, out);
}

#else

#include "matmul_ops.h"

#define LW_OP_int8x2(F) LwQuantOp<F, 2, lw_packed_tiles<F, 2>()>
#define LW_OP_int8(F) LwQuantOp<F, 1, lw_packed_tiles<F, 1>()>
#define LW_OP_f32(F) LwFloatOp<F>
#define LW_OP_f64(F) LwDoubleOp<F>

LW_API void LW_JOIN(lw_matmul_, LW_JOIN(LW_FORMAT, LW_JOIN(_, LW_ACT)))(const LwMatmul* m) {
  lw_run<LW_JOIN(LW_OP_, LW_ACT)(LW_THIS)>(m);
}

#endif
