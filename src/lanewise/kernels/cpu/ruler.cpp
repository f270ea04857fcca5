// What a machine can do at most: bytes read from memory, multiply-adds of each recipe's kind, and
// the cycles that pass meanwhile.
//
// Each function runs on all threads of a pool at once, as a step does.  Loops keep as many
// independent chains as hide the latency; nothing is computed that anybody wants.
#include "lw_support.h"
#include "quant.h"
#include "threads.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

struct LwRuler {
  uint8_t* data;
  int64_t bytes;   // of data, a multiple of 64 * 8 * threads
  int64_t rounds;  // of a loop of multiply-adds
};

enum { CHAINS = 12, STREAMS = 8 };

#if defined(__AVX512F__) && !defined(LW_SCALAR)
enum { WIDTH = 64 };
#elif defined(__AVX2__) && !defined(LW_SCALAR)
enum { WIDTH = 32 };
#else
enum { WIDTH = 16 };
#endif
typedef float floats __attribute__((vector_size(WIDTH)));
typedef uint64_t words __attribute__((vector_size(WIDTH), aligned(WIDTH), may_alias));

#if defined(__x86_64__)
#define VECTOR "+v"
#define KEEP(v) asm volatile("" : : "v"(v))
#else
#define VECTOR "+w"
#define KEEP(v) asm volatile("" : : "w"(v))
#endif

// Backs the memory with pages, each thread its own share.
LW_EXPORT void lw_ruler_fill(void* ruler, int32_t t, int32_t T) {
  const LwRuler* r = (const LwRuler*)ruler;
  const int64_t share = r->bytes / T;
  uint64_t* p = (uint64_t*)(r->data + t * share);
  for (int64_t i = 0; i < share / 8; ++i) {
    p[i] = (uint64_t)i;
    asm volatile("" ::: "memory");
  }
}

// Every thread reads its share once, in eight streams, the next 1 KiB of each asked for ahead.
LW_EXPORT void lw_ruler_read(void* ruler, int32_t t, int32_t T) {
  const LwRuler* r = (const LwRuler*)ruler;
  const int64_t share = r->bytes / T, part = share / STREAMS;
  const uint8_t* p = r->data + t * share;
  words sum[STREAMS] = {};
  for (int64_t i = 0; i < part; i += 64)
    for (int s = 0; s < STREAMS; ++s) {
      __builtin_prefetch(p + s * part + i + 1024);
      for (int j = 0; j < 64; j += WIDTH) sum[s] ^= *(const words*)(p + s * part + i + j);
    }
  for (int s = 1; s < STREAMS; ++s) sum[0] ^= sum[s];
  KEEP(sum[0]);
}

// A chain of operations, each waiting for the one before: it tells how many cycles pass.  A product
// of 64-bit words takes 3 cycles on the x86 cores that we know, a sum one cycle on those of ARM
// (whose products differ); elsewhere there is no clock.
LW_EXPORT void lw_ruler_clock(void* ruler, int32_t, int32_t) {
  const int64_t rounds = ((const LwRuler*)ruler)->rounds;
  uint64_t x = 3;
#if defined(__x86_64__)
  for (int64_t i = 0; i < rounds; ++i)
    asm volatile("imul %0,%0\nimul %0,%0\nimul %0,%0\nimul %0,%0\n" : "+r"(x));
#elif defined(__aarch64__)
  for (int64_t i = 0; i < rounds; ++i)
    asm volatile("add %0,%0,%0\nadd %0,%0,%0\nadd %0,%0,%0\nadd %0,%0,%0\n" : "+r"(x));
#else
  (void)rounds, (void)x;
#endif
}
#if defined(__x86_64__)
LW_EXPORT int32_t lw_ruler_clock_cycles(void) { return 12; }
#elif defined(__aarch64__)
LW_EXPORT int32_t lw_ruler_clock_cycles(void) { return 4; }
#else
LW_EXPORT int32_t lw_ruler_clock_cycles(void) { return 0; }
#endif

// x and y stay unknown to the compiler, so that every product is made.
#define LOOP(type, start, x, y, step)               \
  type c[CHAINS];                                   \
  for (int j = 0; j < CHAINS; ++j) c[j] = start;    \
  for (int64_t i = 0; i < rounds; ++i) {            \
    _Pragma("clang loop unroll(full)")              \
    for (int j = 0; j < CHAINS; ++j) {              \
      asm volatile("" : VECTOR(x), VECTOR(y));      \
      c[j] = step;                                  \
    }                                               \
  }                                                 \
  for (int j = 1; j < CHAINS; ++j) c[0] += c[j];    \
  KEEP(c[0])

#if defined(__FMA__) || defined(__aarch64__)
#define FMA(a, b, c) __builtin_elementwise_fma(a, b, c)
#else
#define FMA(a, b, c) ((a) * (b) + (c))
#endif
LW_EXPORT void lw_ruler_f32(void* ruler, int32_t, int32_t) {
  const int64_t rounds = ((const LwRuler*)ruler)->rounds;
  floats x = (floats){} + 0.5f, y = (floats){} + 0.25f;
  LOOP(floats, ((floats){} + (float)j), x, y, FMA(x, c[j], y));
}
LW_EXPORT int32_t lw_ruler_f32_macs(void) { return CHAINS * WIDTH / 4; }

// Dot products of bytes and of 16-bit words into 32-bit sums, by the best instruction there is.
#if defined(LW_SCALAR) || !(defined(__AVX2__) || defined(__ARM_FEATURE_DOTPROD))
LW_EXPORT void lw_ruler_int8(void*, int32_t, int32_t) {}
LW_EXPORT void lw_ruler_int16(void*, int32_t, int32_t) {}
LW_EXPORT int32_t lw_ruler_int8_macs(void) { return 0; }
LW_EXPORT int32_t lw_ruler_int16_macs(void) { return 0; }
#else
#if defined(__AVX512VNNI__)
typedef __m512i ints;
#define ZERO _mm512_setzero_si512()
#define DOT8 _mm512_dpbusd_epi32(c[j], x, y)
#define DOT16 _mm512_dpwssd_epi32(c[j], x, y)
#elif defined(__AVX2__)
typedef __m256i ints;
#define ZERO _mm256_setzero_si256()
// Sums of 16 bits, as a kernel keeps them as long as they are exact.
#define DOT8 _mm256_add_epi16(c[j], _mm256_maddubs_epi16(x, y))
#define DOT16 _mm256_add_epi32(c[j], _mm256_madd_epi16(x, y))
#else
typedef int32x4_t ints;
#define ZERO vdupq_n_s32(0)
#if defined(__ARM_FEATURE_MATMUL_INT8)
#define DOT8 vusmmlaq_s32(c[j], vreinterpretq_u8_s32(x), vreinterpretq_s8_s32(y))
#define DOT8_MACS 32
#else
#define DOT8 vdotq_s32(c[j], vreinterpretq_s8_s32(x), vreinterpretq_s8_s32(y))
#endif
#define DOT16 vmlal_s16(c[j], vget_low_s16(vreinterpretq_s16_s32(x)), \
                        vget_low_s16(vreinterpretq_s16_s32(y)))
#endif
LW_EXPORT void lw_ruler_int8(void* ruler, int32_t, int32_t) {
  const int64_t rounds = ((const LwRuler*)ruler)->rounds;
  ints x = ZERO, y = ZERO;
  LOOP(ints, ZERO, x, y, DOT8);
}
LW_EXPORT void lw_ruler_int16(void* ruler, int32_t, int32_t) {
  const int64_t rounds = ((const LwRuler*)ruler)->rounds;
  ints x = ZERO, y = ZERO;
  LOOP(ints, ZERO, x, y, DOT16);
}
#if !defined(DOT8_MACS)
#define DOT8_MACS (int32_t)sizeof(ints)
#endif
LW_EXPORT int32_t lw_ruler_int8_macs(void) { return CHAINS * DOT8_MACS; }
#if defined(__AVX2__)
LW_EXPORT int32_t lw_ruler_int16_macs(void) { return CHAINS * (int32_t)sizeof(ints) / 2; }
#else
LW_EXPORT int32_t lw_ruler_int16_macs(void) { return CHAINS * 4; }
#endif
#endif

// Two words in pairs, as matmul_pairs.h mixes them: of eight fours, five take one product and two
// sums where the others take two products.
#if defined(__AVX512VNNI__) && !defined(LW_SCALAR)
enum { FOURS = 8 };
LW_EXPORT void lw_ruler_pairs(void* ruler, int32_t, int32_t) {
  const int64_t rounds = ((const LwRuler*)ruler)->rounds;
  ints c[CHAINS], x = ZERO, y = ZERO, u = ZERO, v = ZERO;
  for (int j = 0; j < CHAINS; ++j) c[j] = ZERO;
  for (int64_t i = 0; i < rounds; ++i) {
    _Pragma("clang loop unroll(full)")
    for (int k = 0; k < FOURS * CHAINS; ++k) {
      const int f = k / CHAINS, j = k % CHAINS;
      asm volatile("" : VECTOR(x), VECTOR(y));
      if (LW_PAIRED >> f & 1) {
        c[j] = _mm512_dpwssd_epi32(c[j], _mm512_add_epi16(x, u), _mm512_add_epi16(y, v));
      } else {
        c[j] = _mm512_dpwssd_epi32(c[j], x, u);
        c[j] = _mm512_dpwssd_epi32(c[j], y, v);
      }
    }
  }
  for (int j = 1; j < CHAINS; ++j) c[0] += c[j];
  KEEP(c[0]);
}
LW_EXPORT int32_t lw_ruler_pairs_macs(void) { return CHAINS * FOURS * 64; }
#else
LW_EXPORT void lw_ruler_pairs(void*, int32_t, int32_t) {}
LW_EXPORT int32_t lw_ruler_pairs_macs(void) { return 0; }
#endif
