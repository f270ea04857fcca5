// The pool's far side and the float mode: linked once into each program, without a C library.
//
// lw_pool_run publishes (fn, ctx) and then the start word; a worker that finds t < T in that word
// takes part, and the caller waits for all of them, so fn and ctx stay put while anybody may read
// them.  A worker that is not asked never looks at them and may sleep through any number of runs.
#include "lw_support.h"
#include "threads.h"

static const uint32_t STOP = 1023;            // in place of T
static const uint32_t BARRIER_SPINS = 2000;   // about 20-60 us
static const uint32_t IDLE_SPINS = 8000;      // between runs

LW_EXPORT int64_t lw_pool_bytes(void) { return (int64_t)sizeof(LwPool); }

// threads: 1..1022, the caller included.
LW_EXPORT void lw_pool_init(void* memory, int32_t threads) {
  memset(memory, 0, sizeof(LwPool));
  LwPool* pool = (LwPool*)memory;
  pool->threads = threads;
  pool->spins = BARRIER_SPINS;
}

LW_EXPORT void lw_pool_worker(void* memory, int32_t t) {
  LwPool* pool = (LwPool*)memory;
  int64_t mode = lw_fp_enter();
  uint32_t seen = 0, spins = IDLE_SPINS;
  for (;;) {
    seen = lw_event_wait(&pool->start, seen, spins);
    uint32_t T = seen & 1023u;
    if (T == STOP) break;
    spins = (uint32_t)t < T ? IDLE_SPINS : 0;  // who is not asked goes back to sleep at once
    if ((uint32_t)t >= T) continue;
    pool->fn(pool->ctx, t, (int32_t)T);
    __atomic_add_fetch(&pool->done.word, 1, __ATOMIC_SEQ_CST);
    lw_event_wake(&pool->done);
  }
  lw_fp_exit(mode);
}

LW_EXPORT void lw_pool_run(void* memory, lw_task fn, void* ctx, int32_t T) {
  LwPool* pool = (LwPool*)memory;
  if (T > pool->threads) T = pool->threads;
  int64_t mode = lw_fp_enter();
  if (T > 1) {
    pool->fn = fn;
    pool->ctx = ctx;
    __atomic_store_n(&pool->done.word, 0, __ATOMIC_RELAXED);
    uint32_t next = (((pool->start.word >> 10) + 1u) << 10) | (uint32_t)T;
    __atomic_store_n(&pool->start.word, next, __ATOMIC_SEQ_CST);
    lw_event_wake(&pool->start);
  }
  fn(ctx, 0, T > 1 ? T : 1);
  uint32_t done = T > 1 ? __atomic_load_n(&pool->done.word, __ATOMIC_ACQUIRE) : 0;
  while (T > 1 && done != (uint32_t)T - 1u) done = lw_event_wait(&pool->done, done, IDLE_SPINS);
  lw_fp_exit(mode);
}

// All workers leave lw_pool_worker; no run may be in flight.
LW_EXPORT void lw_pool_stop(void* memory) {
  LwPool* pool = (LwPool*)memory;
  uint32_t next = (((pool->start.word >> 10) + 1u) << 10) | STOP;
  __atomic_store_n(&pool->start.word, next, __ATOMIC_SEQ_CST);
  lw_event_wake(&pool->start);
}

// Round to nearest even, no flushing of subnormals, exceptions masked; returns the mode before.
LW_EXPORT int64_t lw_fp_enter(void) {
#if defined(__x86_64__)
  uint32_t before, ours = 0x1f80u;
  __asm__ volatile("stmxcsr %0" : "=m"(before));
  __asm__ volatile("ldmxcsr %0" ::"m"(ours));
  return (int64_t)before;
#elif defined(__aarch64__)
  uint64_t before, ours = 0;
  __asm__ volatile("mrs %0, fpcr" : "=r"(before));
  __asm__ volatile("msr fpcr, %0" ::"r"(ours));
  return (int64_t)before;
#else
  return 0;
#endif
}

LW_EXPORT void lw_fp_exit(int64_t mode) {
#if defined(__x86_64__)
  uint32_t before = (uint32_t)mode;
  __asm__ volatile("ldmxcsr %0" ::"m"(before) : "memory");
#elif defined(__aarch64__)
  __asm__ volatile("msr fpcr, %0" ::"r"((uint64_t)mode) : "memory");
#else
  (void)mode;
#endif
}
