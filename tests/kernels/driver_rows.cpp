// The kernels behind one door, for tests: lw_drive(operation, arguments).
//
// lw_test_task is a task for the thread pool.  As a shared object it is called through ctypes. 
// With -DLW_DRIVER_MAIN it is a program that needs no C library: requests come on standard input,
// buffers and results go to standard output, so that an emulator can run it.
#include "../../src/lanewise/kernels/cpu/attention.h"
#include "../../src/lanewise/kernels/cpu/cache.h"
#include "../../src/lanewise/kernels/cpu/lw_support.h"
#include "../../src/lanewise/kernels/cpu/math.h"
#include "../../src/lanewise/kernels/cpu/norm.h"
#include "../../src/lanewise/kernels/cpu/rope.h"
#include "../../src/lanewise/kernels/cpu/sample.h"

union Arg {
  int64_t i;
  double f;
  void* p;
};

namespace {

vf unary(int64_t which, vf x) {
  switch (which) {
    case 0: return vf_exp(x);
    case 1: return vf_log(x);
    case 2: return vf_tanh(x);
    case 3: return vf_sigmoid(x);
    case 4: return vf_silu(x);
    case 5: return vf_gelu(x);
    case 6: return vf_gelu_erf(x);
    case 7: return vf_erf(x);
    case 8: return vf_rsqrt(x);
    case 9: return vf_square(x);
    case 10: return vf_relu(x);
    case 11: return vf_sqrt(x);
    case 12: return vf_rint(x);
    case 13: return vf_floor(x);
    case 14: return vf_trunc(x);
    case 15: return vf_neg(x);
    case 16: return vf_abs(x);
    case 17: return vi_to_f(vf_to_i(x));
    case 18: return vi_to_f(vf_to_i_trunc(x));
    case 19: return vf_sin(x);
    case 20: return vf_cos(x);
    default: return x;
  }
}

vf ternary(int64_t which, vf a, vf b, vf c) {
  vf one = vf_set(1.0f), zero = vf_zero();
  switch (which) {
    case 0: return vf_add(a, b);
    case 1: return vf_sub(a, b);
    case 2: return vf_mul(a, b);
    case 3: return vf_div(a, b);
    case 4: return vf_min(a, b);
    case 5: return vf_max(a, b);
    case 6: return vf_fma(a, b, c);
    case 7: return vf_select(vf_eq(a, b), one, zero);
    case 8: return vf_select(vf_ne(a, b), one, zero);
    case 9: return vf_select(vf_lt(a, b), one, zero);
    case 10: return vf_select(vf_le(a, b), one, zero);
    case 11: return vf_select(vf_gt(a, b), one, zero);
    case 12: return vf_select(vf_ge(a, b), one, zero);
    case 13: return vf_swiglu(a, b);
    default: return a;
  }
}

void map(const Arg* a) {  // which, arity, a, b, c, out, n
  int64_t n = a[6].i;
  const float *x = (const float*)a[2].p, *y = (const float*)a[3].p, *z = (const float*)a[4].p;
  float* out = (float*)a[5].p;
  for (int64_t i = 0; i < n; i += VF_N) {
    int64_t k = n - i < VF_N ? n - i : VF_N;
    vf v = vf_load_n(x + i, k);
    vf r = a[1].i == 1 ? unary(a[0].i, v)
                       : ternary(a[0].i, v, vf_load_n(y + i, k), vf_load_n(z + i, k));
    vf_store_n(out + i, r, k);
  }
}

void halves(const Arg* a) {  // which, in, out, n; 4..7 are the scalar helpers
  int64_t n = a[3].i;
  const float* x = (const float*)a[1].p;
  const uint16_t* h = (const uint16_t*)a[1].p;
  float* out = (float*)a[2].p;
  uint16_t* to = (uint16_t*)a[2].p;
  for (int64_t i = 0; a[0].i >= 4 && i < n; ++i) {
    if (a[0].i == 4) out[i] = lw_f16_to_f32(h[i]);
    if (a[0].i == 5) to[i] = lw_f32_to_f16(x[i]);
    if (a[0].i == 6) out[i] = lw_bf16_to_f32(h[i]);
    if (a[0].i == 7) to[i] = lw_f32_to_bf16(x[i]);
  }
  for (int64_t i = 0; a[0].i < 4 && i < n; i += VF_N) {
    int64_t k = n - i < VF_N ? n - i : VF_N;
    bool whole = k == VF_N;
    if (a[0].i == 0) vf_store_n(out + i, whole ? vf_load_f16(h + i) : vf_load_f16_n(h + i, k), k);
    if (a[0].i == 2) vf_store_n(out + i, whole ? vf_load_bf16(h + i) : vf_load_bf16_n(h + i, k), k);
    vf v = a[0].i & 1 ? vf_load_n(x + i, k) : vf_zero();
    if (a[0].i == 1) whole ? vf_store_f16(to + i, v) : vf_store_f16_n(to + i, v, k);
    if (a[0].i == 3) whole ? vf_store_bf16(to + i, v) : vf_store_bf16_n(to + i, v, k);
  }
}

void bytes(const Arg* a) {  // which, in, out, n; 4..7 are the scalar helpers
  const int64_t n = a[3].i, which = a[0].i;
  const float* x = (const float*)a[1].p;
  const uint8_t* h = (const uint8_t*)a[1].p;
  float* out = (float*)a[2].p;
  uint8_t* to = (uint8_t*)a[2].p;
  for (int64_t i = 0; which >= 4 && i < n; ++i) {
    if (which == 4) out[i] = lw_f8_e4m3_to_f32(h[i]);
    if (which == 5) to[i] = lw_f32_to_f8_e4m3(x[i]);
    if (which == 6) out[i] = lw_f8_e5m2_to_f32(h[i]);
    if (which == 7) to[i] = lw_f32_to_f8_e5m2(x[i]);
  }
  for (int64_t i = 0; which < 4 && i < n; i += VF_N) {
    const int64_t k = n - i < VF_N ? n - i : VF_N;
    const bool whole = k == VF_N;
    vf v = which & 1 ? vf_load_n(x + i, k) : vf_zero();
    if (which == 0) v = whole ? vf_load_f8_e4m3(h + i) : vf_load_f8_e4m3_n(h + i, k);
    if (which == 2) v = whole ? vf_load_f8_e5m2(h + i) : vf_load_f8_e5m2_n(h + i, k);
    if (which == 1) whole ? vf_store_f8_e4m3(to + i, v) : vf_store_f8_e4m3_n(to + i, v, k);
    if (which == 3) whole ? vf_store_f8_e5m2(to + i, v) : vf_store_f8_e5m2_n(to + i, v, k);
    if (!(which & 1)) vf_store_n(out + i, v, k);
  }
}

void lanes(const Arg* a) {  // in (ends where memory may end), out [VF_N + 1][2 * VF_N], n
  const float* x = (const float*)a[0].p;
  float* out = (float*)a[1].p;
  int64_t n = a[2].i;
  for (int64_t k = 0; k <= VF_N && k <= n; ++k) {
    float* row = out + k * 2 * VF_N;
    vf_store(row, vf_load_n(x + n - k, k));
    vf_store_n(row + VF_N, vf_set(2.0f), k);
  }
}

void reduce(const Arg* a) {  // which, x, n, out
  const float* x = (const float*)a[1].p;
  float* out = (float*)a[3].p;
  if (a[0].i == 0) *out = lw_sum(x, a[2].i);
  if (a[0].i == 1) *out = lw_sum_squares(x, a[2].i);
  if (a[0].i == 2) *out = lw_max(x, a[2].i);
}

void rows(const Arg* a) {  // which, x, gain, bias, eps, width, out
  const float *x = (const float*)a[1].p, *gain = (const float*)a[2].p;
  const float* bias = (const float*)a[3].p;
  float eps = (float)a[4].f, *out = (float*)a[6].p;
  if (a[0].i == 0) lw_rms_norm(x, gain, eps, a[5].i, out);
  if (a[0].i == 1) lw_layer_norm(x, gain, bias, eps, a[5].i, out);
  if (a[0].i == 2) lw_softmax(x, a[5].i, out);
}

void rope(const Arg* a) {  // interleaved?, x, table, rotary, d, out
  auto f = a[0].i ? lw_rope_interleaved : lw_rope_half;
  f((const float*)a[1].p, (const float*)a[2].p, a[3].i, a[4].i, (float*)a[5].p);
}

// which (k16 k32 v16 v32 k8 v8 kb16 vb16), head, d, pool, kv_heads, kvh, part, offset, span
void store(const Arg* a) {
  decltype(&lw_k_store_f16) f[] = {lw_k_store_f16, lw_k_store_f32, lw_v_store_f16, lw_v_store_f32,
                                    lw_k_store_q8_0, lw_v_store_q8_0, lw_k_store_bf16,
                                    lw_v_store_bf16};
  f[a[0].i]((const float*)a[1].p, a[2].i, a[3].p, a[4].i, a[5].i, (uint32_t)a[6].i,
            (uint32_t)a[7].i, a[8].i);
}

struct Copy {
  float* out;
  int64_t stride, d;
};
void copy_heads(void* env, const float* head, int64_t row, int64_t h0, int32_t nheads) {
  Copy* c = (Copy*)env;
  for (int64_t i = 0; i < nheads * c->d; ++i) c->out[row * c->stride + h0 * c->d + i] = head[i];
}

// form (0 whole, 1 split, 2 whole with an epilogue, 3 split with one), cache (0 f16, 1 f32,
// 2 q8_0, 3 bf16), q, k, v, table, table_width, slots, positions, rows, heads, kv_heads, d, scale,
// softcap, window, out, partial, pieces, scratch, pages, slot_count, shares, sinks, page
void attention(const Arg* a) {
  LwAttention t;
  Copy copy = {(float*)a[16].p, a[10].i * a[12].i, a[12].i};
  t.q = (const float*)a[2].p;
  t.qstride = t.ostride = copy.stride;
  t.k = a[3].p, t.v = a[4].p;
  t.table = (const uint32_t*)a[5].p, t.table_width = a[6].i;
  t.slots = (const uint32_t*)a[7].p, t.positions = (const uint32_t*)a[8].p;
  t.rows = a[9].i, t.heads = a[10].i, t.kv_heads = a[11].i, t.d = a[12].i;
  t.scale = (float)a[13].f, t.softcap = (float)a[14].f, t.window = a[15].i;
  bool epilogue = a[0].i >= 2, split = a[0].i & 1;
  t.out = epilogue ? nullptr : copy.out;
  t.epilogue = epilogue ? copy_heads : nullptr;
  t.env = &copy;
  t.partial = (float*)a[17].p, t.pieces = a[18].i;
  t.scratch = a[19].p, t.pages = a[20].i, t.slot_count = a[21].i;
  t.sinks = (const float*)a[23].p;
  t.page = a[24].i;
  decltype(&lw_attention_f16) wholes[] = {lw_attention_f16, lw_attention_f32, lw_attention_q8_0,
                                          lw_attention_bf16};
  decltype(&lw_attention_f16) pieces[] = {lw_attention_piece_f16, lw_attention_piece_f32,
                                          lw_attention_piece_q8_0, lw_attention_piece_bf16};
  decltype(&lw_attention_f16) merges[] = {lw_attention_merge_f16, lw_attention_merge_f32,
                                          lw_attention_merge_q8_0, lw_attention_merge_bf16};
  auto whole = wholes[a[1].i], piece = pieces[a[1].i], merge = merges[a[1].i];
  int64_t items = t.rows * t.kv_heads * t.pieces;
  if (!split) items = lw_attention_items_f16(t.rows, t.kv_heads);
  int32_t shares = (int32_t)a[22].i;
  for (int32_t s = shares - 1; s >= 0; --s) {  // any order will do
    lw_range r = lw_split(items, s, shares);
    (split ? piece : whole)(&t, r.begin, r.end);
  }
  if (!split) return;
  items = t.rows * t.heads;
  for (int32_t s = shares - 1; s >= 0; --s) {
    lw_range r = lw_split(items, s, shares);
    merge(&t, r.begin, r.end);
  }
}

void sample(const Arg* a) {  // logits, n, temperature, top_k, top_p, min_p, draws, count, tokens, s
  const float* draws = (const float*)a[6].p;
  const float* logits = (const float*)a[0].p;
  const float largest = lw_max(logits, a[1].i);
  uint32_t* tokens = (uint32_t*)a[8].p;
  for (int64_t i = 0; i < a[7].i; ++i) {  // by turns with what a product's store already knows
    const bool knows = i % 2 && a[1].i > 0 && largest < __builtin_inff();
    lw_sample_row(logits, a[1].i, (float)a[2].f, (uint32_t)a[3].i, (float)a[4].f, (float)a[5].f,
                  draws[i], knows ? lw_argmax(logits, a[1].i) : LW_NO_TOKEN, tokens + i, a[9].p);
  }
}

}  // namespace

// Every thread writes its own line, then reads all lines: a barrier that lets one through early, or
// does not publish a write, is an error.
struct Line {
  alignas(64) int64_t value;
};
struct TaskContext {
  LwPool* pool;
  int64_t rounds, errors, mode;
  Line* lines;
};
LW_EXPORT void lw_test_task(void* context, int32_t t, int32_t T) {
  TaskContext* c = (TaskContext*)context;
  int64_t errors = 0;
  for (int64_t r = 1; r <= c->rounds; ++r) {
    c->lines[t].value = r;
    lw_barrier(c->pool, t, T);
    for (int32_t i = 0; i < T; ++i) errors += c->lines[i].value != r;
    lw_barrier(c->pool, t, T);
  }
  float tiny = 0x1p-126f;
  __asm__ volatile("" : "+m"(tiny));
  errors += tiny * 0.5f == 0.0f;  // flushed to zero: not our float mode
  __atomic_fetch_add(&c->errors, errors, __ATOMIC_RELAXED);
}

LW_EXPORT int64_t lw_drive(int64_t operation, const Arg* a) {
  switch (operation) {
    case 0: map(a); return 0;
    case 1: halves(a); return 0;
    case 2: lanes(a); return 0;
    case 3: reduce(a); return 0;
    case 4: rows(a); return 0;
    case 5: rope(a); return 0;
    case 6: store(a); return 0;
    case 7: attention(a); return 0;
    case 8: sample(a); return 0;
    case 9: return lw_argmax((const float*)a[0].p, a[1].i);
    case 10: return lw_attention_scratch_f16(a[0].i, a[1].i);
    case 11: return lw_sample_scratch(a[0].i);
    case 12: return VF_N;
    case 13: bytes(a); return 0;
    default: return -1;
  }
}

#if defined(LW_DRIVER_MAIN)
#include "driver_main.h"
#endif
