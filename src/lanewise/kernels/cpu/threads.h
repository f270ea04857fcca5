// One pool of threads, its barrier, and the split of work; no C library, no pthread.
//
// Workers are threads of the host program that call lw_pool_worker (runtime.cpp) and stay in it.
// Laws.
//  1. A waiter spins a bounded number of pauses, then sleeps on a futex (Linux); elsewhere it spins
//     with yield hints.  Oversubscribed threads therefore give the core away.
//  2. No wake-up is lost: a waiter announces itself (sleepers + 1), then the kernel compares the
//     word with the value that it waits on; a waker changes the word first and looks at sleepers
//     after. All four steps are sequentially consistent.
//  3. Runs of a pool take turns (LwPool.turn); fn runs on exactly the threads t < T, t = 0 is the
//     caller.
//  4. What a thread wrote before a barrier, all read after it.
#ifndef LW_THREADS_H
#define LW_THREADS_H

#include <stdint.h>

#ifndef LW_INLINE
#define LW_INLINE static inline __attribute__((always_inline, unused))
#endif

typedef void (*lw_task)(void* ctx, int32_t t, int32_t T);

typedef struct {
  alignas(64) uint32_t word;  // what waiters compare
  uint32_t sleepers;          // how many may be in the kernel
} lw_event;

typedef struct LwPool {
  lw_event start;             // word = generation << 10 | T (T = 1023: stop)
  lw_event done;              // word = workers that finished this generation
  lw_event phase;             // word = barriers passed
  alignas(64) uint32_t arrived;
  alignas(64) lw_task fn;
  void* ctx;
  int32_t threads;
  uint32_t spins;             // pauses before a barrier sleeps
  uint32_t stopped;           // the workers were told to leave
  alignas(64) uint32_t turn;  // 0: nobody runs; 1: somebody does; 2: and others may sleep for it
} LwPool;

// A thread that runs what is posted to it, one at a time, while its poster goes on.
typedef struct LwSubmitter {
  lw_event post;  // word = submissions so far << 1 | 1 (leave)
  lw_event done;  // word = submissions that ended (31 bits)
  alignas(64) lw_task fn;
  void* ctx;
  LwPool* pool;
  int32_t threads;
} LwSubmitter;

// Words of a run that the run before it writes: `token` takes what came out as `next`, `position`
// one more, `draw` the next of `draws`.  It ends after `count` runs, or with one of `ends`.
typedef struct LwFeed {
  uint32_t *token, *position;
  float* draw;
  const uint32_t* next;
  const float* draws;   // [count]
  const uint32_t* ends;  // [end_count]
  uint32_t* out;        // [count]: what each run gave
  int32_t count, end_count;
} LwFeed;

LW_INLINE void lw_pause(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb" ::: "memory");  // a yield hint returns at once on most cores
#endif
}

typedef struct {
  int64_t seconds, nanoseconds;
} lw_timespec;

// `limit`: how long to wait at most, null for as long as it takes.
LW_INLINE long lw_futex(uint32_t* word, int op, uint32_t value, const lw_timespec* limit) {
#if defined(__linux__) && defined(__x86_64__)
  long result;
  register const void* timeout __asm__("r10") = limit;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(202L), "D"(word), "S"((long)op), "d"((long)value), "r"(timeout)
                   : "rcx", "r11", "memory");
  return result;
#elif defined(__linux__) && defined(__aarch64__)
  register long nr __asm__("x8") = 98, a1 __asm__("x1") = op, a2 __asm__("x2") = (long)value;
  register long a0 __asm__("x0") = (long)word, a3 __asm__("x3") = (long)limit;
  __asm__ volatile("svc 0" : "+r"(a0) : "r"(nr), "r"(a1), "r"(a2), "r"(a3) : "memory");
  return a0;
#else
  (void)word, (void)op, (void)value, (void)limit;
  for (int i = 0; i < 64; ++i) lw_pause();
  return 0;
#endif
}

enum { LW_FUTEX_WAIT = 128, LW_FUTEX_WAKE = 129 };  // private to the process

// Waits until the word differs from `old`; returns the new value.
static inline __attribute__((unused)) uint32_t lw_event_wait(lw_event* e, uint32_t old,
                                                             uint32_t spins) {
  uint32_t now = __atomic_load_n(&e->word, __ATOMIC_ACQUIRE);
  for (uint32_t i = 0; i < spins && now == old; ++i) {
    lw_pause();
    now = __atomic_load_n(&e->word, __ATOMIC_ACQUIRE);
  }
  if (now != old) return now;
  __atomic_fetch_add(&e->sleepers, 1, __ATOMIC_SEQ_CST);
  while ((now = __atomic_load_n(&e->word, __ATOMIC_SEQ_CST)) == old)
    lw_futex(&e->word, LW_FUTEX_WAIT, old, 0);
  __atomic_fetch_sub(&e->sleepers, 1, __ATOMIC_SEQ_CST);
  return now;
}

LW_INLINE void lw_event_wake(lw_event* e) {  // after the word was changed
  if (__atomic_load_n(&e->sleepers, __ATOMIC_SEQ_CST))
    lw_futex(&e->word, LW_FUTEX_WAKE, 0x7fffffffu, 0);
}

// Every thread t < T calls it equally often.  T == 1 returns at once.
static inline __attribute__((unused)) void lw_barrier(LwPool* pool, int32_t t, int32_t T) {
  (void)t;
  if (T <= 1) return;
  uint32_t phase = __atomic_load_n(&pool->phase.word, __ATOMIC_ACQUIRE);
  if (__atomic_add_fetch(&pool->arrived, 1, __ATOMIC_SEQ_CST) == (uint32_t)T) {
    __atomic_store_n(&pool->arrived, 0, __ATOMIC_RELAXED);  // nobody arrives before the next store
    __atomic_store_n(&pool->phase.word, phase + 1, __ATOMIC_SEQ_CST);
    lw_event_wake(&pool->phase);
  } else {
    lw_event_wait(&pool->phase, phase, pool->spins);
  }
}

typedef struct {
  int64_t begin, end;
} lw_range;

// Contiguous shares whose sizes differ by at most one, the larger ones first.
LW_INLINE lw_range lw_split(int64_t items, int32_t t, int32_t T) {
  int64_t share = items / T, more = items % T;
  lw_range r;
  r.begin = share * t + (t < more ? t : more);
  r.end = r.begin + share + (t < more ? 1 : 0);
  return r;
}

// Shares in whole granules: begin and end are multiples of granule, except that end may be `items`.
LW_INLINE lw_range lw_split_granule(int64_t items, int64_t granule, int32_t t, int32_t T) {
  lw_range r = lw_split((items + granule - 1) / granule, t, T);
  r.begin = r.begin * granule < items ? r.begin * granule : items;
  r.end = r.end * granule < items ? r.end * granule : items;
  return r;
}

#if defined(_WIN32)
#define LW_EXPORT extern "C" __declspec(dllexport)
#else
#define LW_EXPORT extern "C" __attribute__((visibility("default")))
#endif

LW_EXPORT int64_t lw_pool_bytes(void);
LW_EXPORT void lw_pool_init(void* pool, int32_t threads);
LW_EXPORT void lw_pool_worker(void* pool, int32_t t);
LW_EXPORT void lw_pool_run(void* pool, lw_task fn, void* ctx, int32_t T);
LW_EXPORT int32_t lw_pool_feed(void* pool, lw_task fn, void* ctx, int32_t T, const LwFeed* feed);
LW_EXPORT int32_t lw_pool_stop(void* pool);
LW_EXPORT int64_t lw_submit_bytes(void);
LW_EXPORT void lw_submit_init(void* submitter, void* pool);
LW_EXPORT void lw_submit_worker(void* submitter);
LW_EXPORT void lw_submit_post(void* submitter, lw_task fn, void* ctx, int32_t T);
LW_EXPORT int32_t lw_submit_ended(void* submitter, uint32_t turn);
LW_EXPORT int32_t lw_submit_wait(void* submitter, uint32_t turn, int64_t nanoseconds);
LW_EXPORT void lw_submit_leave(void* submitter);
LW_EXPORT int64_t lw_fp_enter(void);
LW_EXPORT void lw_fp_exit(int64_t mode);

#endif  // LW_THREADS_H
