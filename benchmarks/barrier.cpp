// The timed loops of benchmarks/barrier.py, run on all threads of a pool as a step is.
#include "threads.h"

struct Bench {
  LwPool* pool;
  int64_t rounds;
  int64_t passed;  // barriers, by the pool's own count
};

LW_EXPORT void bench_barriers(void* context, int32_t t, int32_t T) {
  Bench* bench = (Bench*)context;
  LwPool* pool = bench->pool;
  const int64_t rounds = bench->rounds;
  const uint32_t before = t == 0 ? __atomic_load_n(&pool->phase.word, __ATOMIC_ACQUIRE) : 0;
  for (int64_t i = 0; i < rounds; ++i) lw_barrier(pool, t, T);
  if (t == 0) bench->passed = __atomic_load_n(&pool->phase.word, __ATOMIC_ACQUIRE) - before;
}

LW_EXPORT void bench_nothing(void*, int32_t, int32_t) {}
