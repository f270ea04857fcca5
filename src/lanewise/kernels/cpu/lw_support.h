// What a compiler may call behind our back: memcpy, memmove, memset, memcmp, for objects that are
// linked without a C library.  Include once in each .cpp.  The symbols are weak and hidden, so
// several objects may carry them and none leaves the shared object.  The empty asm keeps the
// compiler from recognising the loops and calling the functions from themselves.
#ifndef LW_SUPPORT_H
#define LW_SUPPORT_H

#include <stddef.h>
#include <stdint.h>

typedef uint64_t __attribute__((may_alias, aligned(1))) lw_any8;

#define LW_HIDDEN extern "C" __attribute__((weak, visibility("hidden"), used))

LW_HIDDEN void* memcpy(void* to, const void* from, size_t n) {
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    *(lw_any8*)((char*)to + i) = *(const lw_any8*)((const char*)from + i);
    __asm__ volatile("" ::: "memory");
  }
  for (; i < n; ++i) {
    ((char*)to)[i] = ((const char*)from)[i];
    __asm__ volatile("" ::: "memory");
  }
  return to;
}
LW_HIDDEN void* memmove(void* to, const void* from, size_t n) {
  bool up = (char*)to <= (const char*)from;
  for (size_t k = 0; k < n; ++k) {
    size_t i = up ? k : n - 1 - k;
    ((char*)to)[i] = ((const char*)from)[i];
    __asm__ volatile("" ::: "memory");
  }
  return to;
}
LW_HIDDEN void* memset(void* to, int value, size_t n) {
  size_t i = 0;
  uint64_t eight = 0x0101010101010101u * (uint8_t)value;
  for (; i + 8 <= n; i += 8) {
    *(lw_any8*)((char*)to + i) = eight;
    __asm__ volatile("" ::: "memory");
  }
  for (; i < n; ++i) {
    ((char*)to)[i] = (char)value;
    __asm__ volatile("" ::: "memory");
  }
  return to;
}
LW_HIDDEN int memcmp(const void* a, const void* b, size_t n) {
  const unsigned char *x = (const unsigned char*)a, *y = (const unsigned char*)b;
  for (size_t i = 0; i < n; ++i) {
    if (x[i] != y[i]) return x[i] < y[i] ? -1 : 1;
    __asm__ volatile("" ::: "memory");
  }
  return 0;
}

#endif  // LW_SUPPORT_H
