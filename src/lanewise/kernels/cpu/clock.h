// Time per launch, for the timing variant of a program: thread 0 adds up ticks in a table.
//
// A launch has two cells: its own work, and what thread 0 then waited at the barrier after it.
#ifndef LW_CLOCK_H
#define LW_CLOCK_H

#include <stdint.h>

#include "threads.h"

LW_INLINE uint64_t lw_now(void) {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  uint64_t ticks;
  __asm__ volatile("isb\n\tmrs %0, cntvct_el0" : "=r"(ticks) : : "memory");
  return ticks;
#else
  return 0;
#endif
}

// Adds the ticks since `before` to a cell; gives the time now.
LW_INLINE uint64_t lw_tick(int32_t t, uint64_t* cell, uint64_t before) {
  const uint64_t now = lw_now();
  if (t == 0) *cell += now - before;
  return now;
}

// The clock itself, so that a caller can learn how long a tick is.
LW_EXPORT uint64_t lw_ticks(void) { return lw_now(); }

#endif  // LW_CLOCK_H
