// The timed loops of benchmarks/attention.py: each call is timed alone, in the thread's own time.
#include <time.h>

#include "attention.h"

typedef void (*Form)(const LwAttention*, int64_t, int64_t);
typedef void (*Ruler)(void*, int32_t, int32_t);

static double now() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// Seconds of one form over items [item0, item1) of each of `count` jobs, `each` bytes apart (trees
// differ in fields at the end).
LW_EXPORT double bench_attention(Form form, const char* jobs, int64_t each, int64_t count,
                                 int64_t item0, int64_t item1) {
  const double start = now();
  for (int64_t i = 0; i < count; ++i) form((const LwAttention*)(jobs + i * each), item0, item1);
  return now() - start;
}

LW_EXPORT double bench_ruler(Ruler part, void* ruler) {
  const double start = now();
  part(ruler, 0, 1);
  return now() - start;
}
