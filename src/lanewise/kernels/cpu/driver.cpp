// Runs product kernels over vectors from a file: natively, under an emulator, with sanitizers.
//
//     driver INPUT OUTPUT
//
// INPUT is cases; a case is a kernel name ("q4_1_int8x2") in 32 bytes, then seven little-endian
// i64: n, k, rows, granule, cut (a second thread's first column, or 0), halves (2: with w1), bytes
// of one matrix; then the matrix as GGUF rows (twice if halves = 2), then f32 x[rows][k].  OUTPUT
// gets, of each case, f32 y[rows][halves][n] and the decoded last row f32 [k].
//
// No C library is used: with -DLW_START and -nostdlib it links for any Linux of x86-64 or AArch64.
// Kernels are weak symbols, so it links with whichever product objects are at hand.  Every buffer
// that a kernel reads or writes ends at a page that may not be touched.
#include "mem.h"

#define LW_WEAK __attribute__((weak))
#include "matmul.h"
#define LW_WEAK_PRODUCT(F, A) extern "C" LW_WEAK void lw_matmul_##F##_##A(const LwMatmul*);
#define LW_WEAK_PACK(F)                                                                        \
  extern "C" LW_WEAK int64_t lw_packed_bytes_##F(int64_t, int64_t);                            \
  extern "C" LW_WEAK void lw_pack_##F(const void*, void*, int64_t, int64_t, int64_t, int64_t); \
  extern "C" LW_WEAK void lw_gather_##F(const void*, int64_t, int64_t, int64_t, float*);
#define LW_WEAK_FLOAT(F) LW_WEAK_PACK(F) LW_WEAK_PRODUCT(F, f32) LW_WEAK_PRODUCT(F, f64)
#define LW_WEAK_QUANT(F) \
  LW_WEAK_PACK(F) LW_WEAK_PRODUCT(F, int8x2) LW_WEAK_PRODUCT(F, int8) LW_WEAK_PRODUCT(F, f64)
LW_FLOAT_FORMATS(LW_WEAK_FLOAT)
LW_QUANT_FORMATS(LW_WEAK_QUANT)
extern "C" int64_t lw_act_bytes_int8x2(int64_t);
extern "C" int64_t lw_act_bytes_int8(int64_t);
extern "C" void lw_quantize_int8x2(const float*, int64_t, void*);
extern "C" void lw_quantize_int8(const float*, int64_t, void*);

namespace {

#if defined(__x86_64__)
enum { READ = 0, WRITE = 1, OPEN = 257, MMAP = 9, MPROTECT = 10, EXIT = 231 };
int64_t call(int64_t n, int64_t a, int64_t b, int64_t c, int64_t d = 0, int64_t e = 0,
             int64_t f = 0) {
  register int64_t r10 asm("r10") = d;
  register int64_t r8 asm("r8") = e;
  register int64_t r9 asm("r9") = f;
  int64_t r;
  asm volatile("syscall" : "=a"(r) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
               : "rcx", "r11", "memory");
  return r;
}
#else
enum { READ = 63, WRITE = 64, OPEN = 56, MMAP = 222, MPROTECT = 226, EXIT = 94 };
int64_t call(int64_t n, int64_t a, int64_t b, int64_t c, int64_t d = 0, int64_t e = 0,
             int64_t f = 0) {
  register int64_t x8 asm("x8") = n;
  register int64_t x0 asm("x0") = a;
  register int64_t x1 asm("x1") = b;
  register int64_t x2 asm("x2") = c;
  register int64_t x3 asm("x3") = d;
  register int64_t x4 asm("x4") = e;
  register int64_t x5 asm("x5") = f;
  asm volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
               : "memory");
  return x0;
}
#endif

enum { PAGE = 65536 };  // a multiple of every page size in use

[[noreturn]] void quit(int code) {
  for (;;) call(EXIT, code, 0, 0);
}

// Zeroed bytes, 64-aligned, whose 64-byte end meets a page without access.
uint8_t* guarded(int64_t bytes) {
  const int64_t live = (bytes + PAGE - 1) / PAGE * PAGE;
  const int64_t at = call(MMAP, 0, live + 2 * PAGE, 3, 0x22, -1, 0);
  if (at < 0 && at > -4096) quit(3);
  uint8_t* start = (uint8_t*)((at + PAGE - 1) / PAGE * PAGE);
  call(MPROTECT, (int64_t)(start + live), PAGE, 0);
  return start + live - lw_align64(bytes);
}

bool read_all(int64_t file, void* to, int64_t bytes) {
  for (int64_t at = 0; at < bytes;) {
    const int64_t got = call(READ, file, (int64_t)((uint8_t*)to + at), bytes - at);
    if (got <= 0) return false;
    at += got;
  }
  return true;
}

void write_all(int64_t file, const void* from, int64_t bytes) {
  for (int64_t at = 0; at < bytes;) {
    const int64_t put = call(WRITE, file, (int64_t)((const uint8_t*)from + at), bytes - at);
    if (put <= 0) quit(4);
    at += put;
  }
}

struct Kernel {
  const char* name;
  const char* act;
  void (*product)(const LwMatmul*);
  int64_t (*packed_bytes)(int64_t, int64_t);
  void (*pack)(const void*, void*, int64_t, int64_t, int64_t, int64_t);
  void (*gather)(const void*, int64_t, int64_t, int64_t, float*);
};

#define LW_ROW(F, A) \
  {#F "_" #A, #A, lw_matmul_##F##_##A, lw_packed_bytes_##F, lw_pack_##F, lw_gather_##F},
#define LW_ROWS_FLOAT(F) LW_ROW(F, f32) LW_ROW(F, f64)
#define LW_ROWS_QUANT(F) LW_ROW(F, int8x2) LW_ROW(F, int8) LW_ROW(F, f64)

bool same(const char* a, const char* b) {
  for (; *a && *a == *b; ++a, ++b) {
  }
  return *a == *b;
}

struct Output {
  float* y;
  int64_t n, halves;
};

void store(void* env, const float* tile, int64_t ld, int64_t row0, int32_t rows, int64_t col0,
           int32_t cols) {
  const Output* o = (const Output*)env;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t h = 0; h < o->halves; ++h)
      lw_copy(o->y + ((row0 + r) * o->halves + h) * o->n + col0, tile + r * ld + h * cols,
              cols * 4);
}

struct Case {
  char name[32];
  int64_t n, k, rows, granule, cut, halves, bytes;
};

void run(const Kernel& kernel, const Case& c, int64_t in, int64_t out) {
  uint8_t* packed[2] = {};
  for (int64_t h = 0; h < c.halves; ++h) {
    uint8_t* raw = guarded(c.bytes);
    if (!read_all(in, raw, c.bytes)) quit(2);
    packed[h] = guarded(kernel.packed_bytes(c.n, c.k));
    kernel.pack(raw, packed[h], c.n, c.k, 0, (c.n + 15) / 16);
  }
  float* x = (float*)guarded(c.rows * c.k * 4);
  if (!read_all(in, x, c.rows * c.k * 4)) quit(2);
  const bool one = same(kernel.act, "int8"), two = same(kernel.act, "int8x2");
  int64_t stride = one ? lw_act_bytes_int8(c.k) : two ? lw_act_bytes_int8x2(c.k) : c.k * 4;
  uint8_t* rows = (uint8_t*)x;
  if (one || two) {
    rows = guarded(c.rows * stride);
    for (int64_t r = 0; r < c.rows; ++r)
      (one ? lw_quantize_int8 : lw_quantize_int8x2)(x + r * c.k, c.k, rows + r * stride);
  }
  Output y = {(float*)guarded(c.rows * c.halves * c.n * 4), c.n, c.halves};
  LwMatmul m = {packed[0], packed[1], rows, stride, c.k, c.n, c.rows, 0, c.n, c.granule,
                store, &y, guarded(lw_matmul_scratch(c.k, c.granule)), nullptr};
  const int64_t edges[3] = {0, c.cut, c.n};
  for (int t = c.cut ? 0 : 1; t < 2; ++t) {
    m.col0 = edges[t], m.col1 = edges[t + 1];
    kernel.product(&m);
  }
  write_all(out, y.y, c.rows * c.halves * c.n * 4);
  float* row = (float*)guarded(c.k * 4);
  kernel.gather(packed[0], c.n, c.k, c.n - 1, row);
  write_all(out, row, c.k * 4);
}

int drive(int argc, char** argv) {
  const Kernel kernels[] = {LW_FLOAT_FORMATS(LW_ROWS_FLOAT) LW_QUANT_FORMATS(LW_ROWS_QUANT)};
  if (argc != 3) return 1;
  const int64_t in = call(OPEN, -100, (int64_t)argv[1], 0);
  const int64_t out = call(OPEN, -100, (int64_t)argv[2], 01 | 0100 | 01000, 0644);
  if (in < 0 || out < 0) return 1;
  Case c;
  while (read_all(in, &c, sizeof c)) {
    c.name[31] = 0;
    const Kernel* found = nullptr;
    for (const Kernel& kernel : kernels)
      if (same(kernel.name, c.name) && kernel.product && kernel.pack) found = &kernel;
    if (!found || c.n <= 0 || c.k <= 0 || c.rows < 0 || c.halves < 1 || c.halves > 2) return 5;
    run(*found, c, in, out);
  }
  return 0;
}

}  // namespace

#if defined(LW_START)
#include "lw_support.h"
extern "C" __attribute__((used)) void lw_start(int64_t* stack) {
  quit(drive((int)stack[0], (char**)(stack + 1)));
}
#if defined(__x86_64__)
asm(".globl _start\n_start:\n mov %rsp, %rdi\n and $-64, %rsp\n call lw_start\n");
#else
asm(".globl _start\n_start:\n mov x0, sp\n bl lw_start\n");
#endif
#else
int main(int argc, char** argv) { return drive(argc, argv); }
#endif
