// The driver as a program (aarch64 Linux, no C library).
//
// Input: i64 operation, i64 count, then per argument i64 kind (0 integer, 1 number, 2 buffer) and
// 8 bytes of value, or a size in bytes and the bytes padded to 8; repeated until the end.
// Output, per request: i64 result, then all buffers in order, padded to 8.
#ifndef DRIVER_MAIN_H
#define DRIVER_MAIN_H

static long call(long nr, long a, long b, long c, long d, long e, long f) {
  register long x8 __asm__("x8") = nr, x0 __asm__("x0") = a, x1 __asm__("x1") = b;
  register long x2 __asm__("x2") = c, x3 __asm__("x3") = d, x4 __asm__("x4") = e;
  register long x5 __asm__("x5") = f;
  __asm__ volatile("svc 0"
                   : "+r"(x0)
                   : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                   : "memory");
  return x0;
}
static void all(long nr, long fd, char* p, int64_t n) {  // read 63, write 64
  while (n > 0) {
    long done = call(nr, fd, (long)p, n, 0, 0, 0);
    if (done <= 0) call(94, 0, 0, 0, 0, 0, 0);  // exit_group
    p += done;
    n -= done;
  }
}

static char* mapped;
static int64_t used;
static const int64_t ROOM = (int64_t)1 << 30;

static char* room(int64_t n) {  // 64-aligned, never given back within a request
  char* p = mapped + used;
  used += (n + 127) / 64 * 64;
  return p;
}

extern "C" void run(void) {
  mapped = (char*)call(222, 0, ROOM, 3, 0x22, -1, 0);  // mmap
  for (;;) {
    used = 0;
    int64_t head[2];
    all(63, 0, (char*)head, 16);
    Arg args[32];
    int64_t sizes[32];
    for (int64_t i = 0; i < head[1]; ++i) {
      int64_t word[2];
      all(63, 0, (char*)word, 16);
      sizes[i] = word[0] == 2 ? (word[1] + 7) / 8 * 8 : 0;
      args[i].i = word[1];
      if (word[0] != 2) continue;
      args[i].p = room(sizes[i]);
      all(63, 0, (char*)args[i].p, sizes[i]);
    }
    int64_t result = lw_drive(head[0], args);
    all(64, 1, (char*)&result, 8);
    for (int64_t i = 0; i < head[1]; ++i)
      if (sizes[i]) all(64, 1, (char*)args[i].p, sizes[i]);
  }
}
__asm__(".globl _start\n_start:\n  mov x29, #0\n  bl run\n");

#endif  // DRIVER_MAIN_H
