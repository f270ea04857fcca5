// The timed loops of benchmarks/products.py: several threads start together on a shared counter,
// each runs its share of a list of products, and reports its seconds.
#include <time.h>

#include "matmul.h"
#include "mem.h"

typedef void (*Product)(const LwMatmul*);

static clockid_t clock_id = CLOCK_MONOTONIC;

LW_API void bench_cpu_time() { clock_id = CLOCK_THREAD_CPUTIME_ID; }

static double now() {
  timespec t;
  clock_gettime(clock_id, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void together(volatile int32_t* waiting) {
  __atomic_sub_fetch((int32_t*)waiting, 1, __ATOMIC_ACQ_REL);
  while (__atomic_load_n((int32_t*)waiting, __ATOMIC_ACQUIRE) > 0) {
  }
}

// What the cheapest real epilogue does: it stores the tile.
static void store(void* env, const float* tile, int64_t ld, int64_t row0, int32_t rows,
                  int64_t col0, int32_t cols) {
  float* out = (float*)env;
  for (int32_t r = 0; r < rows; ++r)
    __builtin_memcpy(out + ((row0 + r) & 511) * 256 + (col0 & 255), tile + r * ld, 4 * cols);
}

LW_API double bench_products(Product product, LwMatmul* jobs, int64_t count, int64_t reps,
                             int32_t* waiting) {
  for (int64_t i = 0; i < count; ++i) jobs[i].epilogue = store;
  together(waiting);
  const double start = now();
  for (int64_t r = 0; r < reps; ++r)
    for (int64_t i = 0; i < count; ++i) product(jobs + i);
  return now() - start;
}

// Reads bytes in `streams` interleaved streams.
LW_API double bench_read(const uint8_t* p, int64_t bytes, int64_t streams, int32_t* waiting) {
  typedef uint64_t line __attribute__((vector_size(64), aligned(64)));
  const int64_t part = bytes / streams / 64 * 64;
  line sum = {};
  together(waiting);
  const double start = now();
  for (int64_t i = 0; i < part; i += 64)
    for (int64_t s = 0; s < streams; ++s) sum ^= *(const line*)(p + s * part + i);
  const double seconds = now() - start;
  asm volatile("" : : "m"(sum));
  return seconds;
}

// Cycles per second, by a chain of operations of known latency (as in kernels/cpu/ruler.cpp).
LW_API double bench_clock() {
  double best = 0;
  for (int r = 0; r < 5; ++r) {
    const double start = now();
    uint64_t x = 3;
#if defined(__aarch64__)
    const double cycles = 4;
    for (int i = 0; i < 40000; ++i)
      asm volatile("add %0,%0,%0\nadd %0,%0,%0\nadd %0,%0,%0\nadd %0,%0,%0\n" : "+r"(x));
#else
    const double cycles = 12;
    for (int i = 0; i < 40000; ++i)
      asm volatile("imul %0,%0\nimul %0,%0\nimul %0,%0\nimul %0,%0\n" : "+r"(x));
#endif
    const double hz = 40000 * cycles / (now() - start);
    if (hz > best) best = hz;
  }
  return best;
}
