// The smallest things every kernel needs.  Laws:
//  - freestanding: no libc call is written, and none may appear (loops that a compiler would turn
//    into memcpy or memset calls carry an empty asm; tests look at the objects' undefined symbols);
//  - nothing here does arithmetic.
#pragma once
#include <stddef.h>
#include <stdint.h>

#define LW_INLINE static inline __attribute__((always_inline, unused))
#define LW_NOINLINE static __attribute__((noinline))
#define LW_INLINE_MEMBER static __attribute__((always_inline)) inline
#define LW_API extern "C" __attribute__((visibility("default")))
#define LW_UNROLL _Pragma("clang loop unroll(full)")
#define LW_ROLL _Pragma("clang loop unroll(disable)")

// Types that may alias anything and need no alignment: how packed bytes are read.
typedef uint16_t lw_u16_any __attribute__((aligned(1), may_alias));
typedef uint32_t lw_u32_any __attribute__((aligned(1), may_alias));
typedef int32_t lw_i32_any __attribute__((aligned(1), may_alias));
typedef float lw_f32_any __attribute__((aligned(1), may_alias));

LW_INLINE uint16_t lw_load_u16(const void* p) { return *(const lw_u16_any*)p; }
LW_INLINE uint32_t lw_load_u32(const void* p) { return *(const lw_u32_any*)p; }
LW_INLINE void lw_store_u16(void* p, uint16_t v) { *(lw_u16_any*)p = v; }
LW_INLINE void lw_store_u32(void* p, uint32_t v) { *(lw_u32_any*)p = v; }

LW_INLINE void lw_copy(void* to, const void* from, int64_t bytes) {
  uint8_t* t = (uint8_t*)to;
  const uint8_t* f = (const uint8_t*)from;
  int64_t i = 0;
  LW_ROLL for (; i + 4 <= bytes; i += 4) {
    *(lw_u32_any*)(t + i) = *(const lw_u32_any*)(f + i);
    asm volatile("" ::: "memory");
  }
  for (; i < bytes; ++i) {
    t[i] = f[i];
    asm volatile("" ::: "memory");
  }
}

LW_INLINE void lw_zero(void* to, int64_t bytes) {
  uint8_t* t = (uint8_t*)to;
  int64_t i = 0;
  LW_ROLL for (; i + 4 <= bytes; i += 4) {
    *(lw_u32_any*)(t + i) = 0;
    asm volatile("" ::: "memory");
  }
  for (; i < bytes; ++i) {
    t[i] = 0;
    asm volatile("" ::: "memory");
  }
}

LW_INLINE int64_t lw_align64(int64_t bytes) { return (bytes + 63) & ~(int64_t)63; }
LW_INLINE int64_t lw_min64(int64_t a, int64_t b) { return a < b ? a : b; }
