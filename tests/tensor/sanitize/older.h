// Before any other line: the C library's memory functions instead of lw_support.h's (sanitizers
// have their own of them), and two builtins that clang lacks before version 15 and 20.
#define LW_SUPPORT_H
#include <string.h>

#if !__has_builtin(__builtin_elementwise_fma)
inline float lw_older_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double lw_older_fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
template <class V>
inline V lw_older_fma_each(V a, V b, V c) {
  for (unsigned i = 0; i < sizeof(V) / sizeof(a[0]); ++i) c[i] = lw_older_fma(a[i], b[i], c[i]);
  return c;
}
#define __builtin_elementwise_fma(...) lw_older_fma_each(__VA_ARGS__)
#endif

#if !__has_builtin(__builtin_reduce_add)
template <class V>
inline auto lw_older_sum(V v) {
  auto sum = v[0] + 0;
  for (unsigned i = 1; i < sizeof(V) / sizeof(v[0]); ++i) sum += v[i];
  return sum;
}
#define __builtin_reduce_add(...) lw_older_sum(__VA_ARGS__)
#endif
