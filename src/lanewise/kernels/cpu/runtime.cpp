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
static const uint32_t SUBMIT_SPINS = 2000;    // between submissions, and for the end of one

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

static void take_turn(LwPool* pool) {
  uint32_t nobody = 0;
  if (__atomic_compare_exchange_n(&pool->turn, &nobody, 1, false, __ATOMIC_SEQ_CST,
                                  __ATOMIC_SEQ_CST))
    return;
  while (__atomic_exchange_n(&pool->turn, 2, __ATOMIC_SEQ_CST) != 0)
    lw_futex(&pool->turn, LW_FUTEX_WAIT, 2, 0);
}

static void end_turn(LwPool* pool) {
  if (__atomic_exchange_n(&pool->turn, 0, __ATOMIC_SEQ_CST) == 2)
    lw_futex(&pool->turn, LW_FUTEX_WAKE, 1, 0);
}

LW_EXPORT void lw_pool_run(void* memory, lw_task fn, void* ctx, int32_t T) {
  LwPool* pool = (LwPool*)memory;
  take_turn(pool);
  if (T > pool->threads) T = pool->threads;
  if (pool->stopped) T = 1;  // posted before the end: the same bits, by this thread alone
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
  end_turn(pool);
}

// Run after run without a way back to the host in between; how many there were.
LW_EXPORT int32_t lw_pool_feed(void* memory, lw_task fn, void* ctx, int32_t T, const LwFeed* feed) {
  for (int32_t i = 0; i < feed->count; ++i) {
    if (i > 0) {
      *feed->token = feed->out[i - 1];
      *feed->position += 1;
    }
    *feed->draw = feed->draws[i];
    lw_pool_run(memory, fn, ctx, T);
    feed->out[i] = *feed->next;
    for (int32_t e = 0; e < feed->end_count; ++e)
      if (feed->out[i] == feed->ends[e]) return i + 1;
  }
  return feed->count;
}

// All workers leave lw_pool_worker; 0, and nothing is done, while a run is in flight.
LW_EXPORT int32_t lw_pool_stop(void* memory) {
  LwPool* pool = (LwPool*)memory;
  uint32_t nobody = 0;
  if (!__atomic_compare_exchange_n(&pool->turn, &nobody, 1, false, __ATOMIC_SEQ_CST,
                                   __ATOMIC_SEQ_CST))
    return 0;
  pool->stopped = 1;
  uint32_t next = (((pool->start.word >> 10) + 1u) << 10) | STOP;
  __atomic_store_n(&pool->start.word, next, __ATOMIC_SEQ_CST);
  lw_event_wake(&pool->start);
  end_turn(pool);
  return 1;
}

LW_EXPORT int64_t lw_submit_bytes(void) { return (int64_t)sizeof(LwSubmitter); }

LW_EXPORT void lw_submit_init(void* memory, void* pool) {
  memset(memory, 0, sizeof(LwSubmitter));
  ((LwSubmitter*)memory)->pool = (LwPool*)pool;
}

LW_EXPORT void lw_submit_worker(void* memory) {
  LwSubmitter* s = (LwSubmitter*)memory;
  for (uint32_t seen = 0; !(seen & 1u);) {
    uint32_t now = lw_event_wait(&s->post, seen, SUBMIT_SPINS);
    if (now >> 1 != seen >> 1) {
      lw_pool_run(s->pool, s->fn, s->ctx, s->threads);
      __atomic_store_n(&s->done.word, now >> 1, __ATOMIC_SEQ_CST);
      lw_event_wake(&s->done);
    }
    seen = now;
  }
}

// Starts fn as the next turn (1, 2, ...); what was posted before has ended.
LW_EXPORT void lw_submit_post(void* memory, lw_task fn, void* ctx, int32_t T) {
  LwSubmitter* s = (LwSubmitter*)memory;
  s->fn = fn;
  s->ctx = ctx;
  s->threads = T;
  uint32_t next = s->post.word + 2u;
  __atomic_store_n(&s->post.word, next, __ATOMIC_SEQ_CST);
  lw_event_wake(&s->post);
}

LW_EXPORT int32_t lw_submit_ended(void* memory, uint32_t turn) {
  uint32_t done = __atomic_load_n(&((LwSubmitter*)memory)->done.word, __ATOMIC_ACQUIRE);
  return ((done - turn) & 0x7fffffffu) < 0x40000000u;  // turns wrap at 31 bits
}

// Waits at most so long, or less; 1 if the turn has ended.
LW_EXPORT int32_t lw_submit_wait(void* memory, uint32_t turn, int64_t nanoseconds) {
  LwSubmitter* s = (LwSubmitter*)memory;
  uint32_t spins = nanoseconds > 0 ? SUBMIT_SPINS : 0;
  for (uint32_t i = 0; i < spins && !lw_submit_ended(s, turn); ++i) lw_pause();
  if (nanoseconds <= 0 || lw_submit_ended(s, turn)) return lw_submit_ended(s, turn);
  lw_timespec limit = {nanoseconds / 1000000000, nanoseconds % 1000000000};
  __atomic_fetch_add(&s->done.sleepers, 1, __ATOMIC_SEQ_CST);
  uint32_t before = __atomic_load_n(&s->done.word, __ATOMIC_SEQ_CST);
  if (!lw_submit_ended(s, turn)) lw_futex(&s->done.word, LW_FUTEX_WAIT, before, &limit);
  __atomic_fetch_sub(&s->done.sleepers, 1, __ATOMIC_SEQ_CST);
  return lw_submit_ended(s, turn);
}

// The worker returns as soon as what was posted has ended.
LW_EXPORT void lw_submit_leave(void* memory) {
  LwSubmitter* s = (LwSubmitter*)memory;
  __atomic_fetch_or(&s->post.word, 1u, __ATOMIC_SEQ_CST);
  lw_event_wake(&s->post);
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
