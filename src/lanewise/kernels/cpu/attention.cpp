// Attention over the paged pool, compiled once per cache dtype: -DLW_KV=f16, f32 or q8_0.
//
// Work comes as runs: rows of one slot at consecutive positions, all query heads of a kv head
// together, so that a block of K or V is read (and, if it is not f32, widened) once per run.  A
// run walks the pieces of 256 positions in order; see attention.h for the recipe.
#include "lw_support.h"

#include "attention_tile.h"

#define LW_KV_f16 1
#define LW_KV_f32 2
#define LW_KV_q8_0 3
#define LW_CAT2(a, b) a##b
#define LW_CAT(a, b) LW_CAT2(a, b)
#define LW_NAME(base) LW_CAT(base, LW_KV)
#if LW_CAT(LW_KV_, LW_KV) == LW_KV_f16
typedef uint16_t lw_kv;
static inline float lw_kv_value(lw_kv a) { return lw_f16_to_f32(a); }
#elif LW_CAT(LW_KV_, LW_KV) == LW_KV_f32
typedef float lw_kv;
static inline float lw_kv_value(lw_kv a) { return a; }
#elif LW_CAT(LW_KV_, LW_KV) == LW_KV_q8_0
typedef int8_t lw_kv;  // codes; always widened
#else
#error "LW_KV must be f16, f32 or q8_0"
#endif

namespace {

constexpr int64_t PIECE = LW_ATTENTION_PIECE;
constexpr int64_t LD = LW_ATT_LD;

int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
int64_t padded(int64_t d) { return (d + VF_N - 1) / VF_N * VF_N; }

// Per thread.  q, s, o: q rows of stride LD; total: the merged outputs; block: one widened K or V.
struct Scratch {
  float *q, *s, *o, *total, *block, *m, *sum, *total_m, *total_sum;
};

// Heads of a group that go together: any number for one row, at most 8 for a tile of 16.
int64_t heads_at_once(int64_t group, int64_t rows) {
  return least(group, rows > 1 ? LW_ATT_Q / LW_ATTENTION_TILE : LW_ATT_Q);
}
int64_t most_q_rows(int64_t group) {
  return most(least(group, LW_ATT_Q), LW_ATTENTION_TILE * heads_at_once(group, LW_ATTENTION_TILE));
}

Scratch carve(const LwAttention* a) {
  int64_t n = most_q_rows(a->heads / a->kv_heads) * LD;
  Scratch s;
  s.q = (float*)a->scratch;
  s.s = s.q + n;
  s.o = s.s + n;
  s.total = s.o + n;
  s.block = s.total + n;
  s.m = s.block + LW_PAGE * LW_ATT_D;
  s.sum = s.m + LW_ATT_Q;
  s.total_m = s.sum + LW_ATT_Q;
  s.total_sum = s.total_m + LW_ATT_Q;
  return s;
}

int64_t first_seen(const LwAttention* a, int64_t position) {
  return a->window > 0 ? most(0, position - a->window + 1) : 0;
}

// Are all pages of positions [from, to] there?
bool pages_there(const LwAttention* a, uint32_t slot, int64_t from, int64_t to) {
  const uint32_t* pages = a->table + (int64_t)slot * a->table_width;
  bool good = true;
  for (int64_t b = from / LW_PAGE; b <= to / LW_PAGE; ++b) good &= (int64_t)pages[b] < a->pages;
  return good;
}

bool row_in_reach(const LwAttention* a, int64_t row) {
  return (int64_t)a->slots[row] < a->slot_count &&
         (int64_t)a->positions[row] < a->table_width * LW_PAGE;
}

bool row_present(const LwAttention* a, int64_t row) {
  if (!row_in_reach(a, row)) return false;
  int64_t p = a->positions[row];
  return pages_there(a, a->slots[row], first_seen(a, p), p);
}

const lw_kv* block_of(const LwAttention* a, const void* pool, uint32_t slot, int64_t block,
                      int64_t kvh) {
  uint32_t page = a->table[(int64_t)slot * a->table_width + block];
  int64_t elements = lw_kv_base(a->d, a->kv_heads, kvh, page);
  return (const lw_kv*)pool + (sizeof(lw_kv) == 1 ? elements / 32 * 34 : elements);
}

#if LW_CAT(LW_KV_, LW_KV) == LW_KV_q8_0
// A block of keys, [d][64] codes and [d / 32][64] scales -> f32 [d][64].
void widen_k(const lw_kv* k, int64_t d, float* to) {
  const uint16_t* scales = (const uint16_t*)(k + d * LW_PAGE);
  for (int64_t g = 0; g < d; g += 32, scales += LW_PAGE)
    for (int64_t c = 0; c < LW_PAGE; c += VF_N) {
      vf s = vf_load_f16(scales + c);
      for (int64_t i = g * LW_PAGE + c; i < (g + 32) * LW_PAGE; i += LW_PAGE)
        vf_store(to + i, vf_mul(vi_to_f(vi_load_i8(k + i)), s));
    }
}
// A block of values, [64][d] codes and [64][d / 32] scales -> f32 [64][d].
void widen_v(const lw_kv* v, int64_t d, float* to) {
  const uint16_t* scales = (const uint16_t*)(v + d * LW_PAGE);
  float wide[LW_PAGE * LW_ATT_D / 32];
  for (int64_t i = 0; i < LW_PAGE * d / 32; i += VF_N) vf_store(wide + i, vf_load_f16(scales + i));
  for (int64_t i = 0; i < LW_PAGE * d; i += 32) {
    vf s = vf_set(wide[i / 32]);
    for (int64_t c = i; c < i + 32; c += VF_N)
      vf_store(to + c, vf_mul(vi_to_f(vi_load_i8(v + c)), s));
  }
}
#else
// rows x width elements of stride `width` -> f32 of stride `ld`, the tail of a vector +0.
void widen(const lw_kv* from, int64_t rows, int64_t width, float* to, int64_t ld) {
  for (int64_t r = 0; r < rows; ++r, from += width, to += ld) {
    int64_t c = 0;
    for (; c + VF_N <= width; c += VF_N) vf_store(to + c, lw_att_load(from + c));
    if (c == width) continue;
    float tail[VF_N];
    for (int i = 0; i < VF_N; ++i) tail[i] = c + i < width ? lw_kv_value(from[c + i]) : 0.0f;
    vf_store(to + c, vf_load(tail));
  }
}
void widen_k(const lw_kv* k, int64_t d, float* to) { widen(k, d, LW_PAGE, to, LW_PAGE); }
void widen_v(const lw_kv* v, int64_t d, float* to) { widen(v, LW_PAGE, d, to, padded(d)); }
#endif

// A run: rows row0.. of one slot at positions p0.., heads h0.. of kv head kvh.
struct Run {
  const LwAttention* a;
  Scratch s;
  int64_t row0, rows, kvh, h0, heads;
  int64_t q_rows() const { return rows * heads; }
  int64_t position(int64_t q_row) const { return (int64_t)a->positions[row0] + q_row / heads; }
  uint32_t slot() const { return a->slots[row0]; }
};

void load_q(const Run& run) {
  const LwAttention* a = run.a;
  for (int64_t i = 0; i < run.q_rows(); ++i) {
    const float* from =
        a->q + (run.row0 + i / run.heads) * a->qstride + (run.h0 + i % run.heads) * a->d;
    for (int64_t c = 0; c < a->d; ++c) run.s.q[i * LD + c] = from[c];
  }
}

// Raw score chains of one block into its 64 columns of s; `next` is what is read after it.
template <class T>
void block_scores(const Run& run, int64_t block, const T* next) {
  const LwAttention* a = run.a;
  const T* k = block_of(a, a->k, run.slot(), block, run.kvh);
  float* s = run.s.s + block % (PIECE / LW_PAGE) * LW_PAGE;
  int64_t n = run.q_rows();
  bool wide = sizeof(T) == 1 || (sizeof(T) == 2 && n > 6);
  if (wide) widen_k(k, a->d, run.s.block);
  for (int64_t i = 0; i < n; i += 6) {
    int rows = (int)least(6, n - i);
    // columns that the last of these rows sees; the rest stays as it was, and is masked
    int64_t seen = run.position(i + rows - 1) + 1 - block * LW_PAGE;
    int64_t width = least(LW_PAGE, padded(most(0, seen)));
    const float* q = run.s.q + i * LD;
    if (wide)
      lw_att_product(rows, q, a->d, run.s.block, LW_PAGE, s + i * LD, width, true);
    else if constexpr (sizeof(T) > 1)
      lw_att_product(rows, q, a->d, k, LW_PAGE, s + i * LD, width, true, i == 0 ? next : nullptr);
  }
}

// Adds positions [from, to) of a block to the outputs of `rows` q rows from i on.
template <class T>
void add_values(const Run& run, int64_t i, int rows, int64_t base, int64_t from, int64_t to,
                const T* v, int64_t ldv, const T* next) {
  if (from >= to) return;
  const float* p = run.s.s + i * LD + base % PIECE + from;
  lw_att_product(rows, p, to - from, v + from * ldv, ldv, run.s.o + i * LD, padded(run.a->d),
                 false, next);
}

// One block's values: what all q rows of a group of six see goes together, the edges one by one.
template <class T>
void block_values(const Run& run, int64_t block, const T* v, int64_t ldv, const T* next) {
  int64_t base = block * LW_PAGE, n = run.q_rows();
  for (int64_t i = 0; i < n; i += 6) {
    int rows = (int)least(6, n - i);
    int64_t from = most(0, first_seen(run.a, run.position(i + rows - 1)) - base);
    int64_t to = least(LW_PAGE, run.position(i) + 1 - base);
    bool together = from < to;
    for (int r = 0; r < rows; ++r) {  // the left edge (a window's start), or all of it
      int64_t p = run.position(i + r);
      int64_t begin = most(0, first_seen(run.a, p) - base), end = least(LW_PAGE, p + 1 - base);
      add_values(run, i + r, 1, base, begin, together ? from : end, v, ldv, (const T*)nullptr);
    }
    if (!together) continue;
    add_values(run, i, rows, base, from, to, v, ldv, i == 0 ? next : nullptr);
    for (int r = 0; r < rows; ++r) {  // the right edge (the diagonal)
      int64_t end = least(LW_PAGE, run.position(i + r) + 1 - base);
      add_values(run, i + r, 1, base, to, end, v, ldv, (const T*)nullptr);
    }
  }
}

template <class T>
void block_output(const Run& run, int64_t block, const T* next) {
  const LwAttention* a = run.a;
  const T* v = block_of(a, a->v, run.slot(), block, run.kvh);
  bool wide = sizeof(T) == 1 || a->d % VF_N != 0 || (sizeof(T) == 2 && run.q_rows() > 6);
  if (wide) {
    int64_t ldv = padded(a->d);
    widen_v(v, a->d, run.s.block);
    block_values(run, block, run.s.block, ldv, (const float*)nullptr);
  } else if constexpr (sizeof(T) > 1) {
    block_values(run, block, v, a->d, next);
  }
}

// One piece for all q rows: o and sum of each that sees any of it; m too.  sum < 0: sees nothing.
void run_piece(const Run& run, int64_t piece) {
  const LwAttention* a = run.a;
  int64_t n = run.q_rows(), base = piece * PIECE;
  int64_t from = most(base, first_seen(a, run.position(0)));
  int64_t last = least(base + PIECE - 1, run.position(n - 1));
  int64_t b0 = from / LW_PAGE, b1 = last / LW_PAGE;
  for (int64_t b = b0; b <= b1; ++b)
    block_scores(run, b, b < b1 ? block_of(a, a->k, run.slot(), b + 1, run.kvh)
                                : block_of(a, a->v, run.slot(), b0, run.kvh));
  for (int64_t i = 0; i < n; ++i) {
    int64_t begin = most(0, first_seen(a, run.position(i)) - base);
    int64_t end = least(PIECE, run.position(i) + 1 - base);
    run.s.sum[i] = -1.0f;
    if (begin < end)
      lw_att_softmax(run.s.s + i * LD, begin, end, a->scale, a->softcap, run.s.m + i,
                     run.s.sum + i);
    for (int64_t c = 0; c < padded(a->d); c += VF_N) vf_store(run.s.o + i * LD + c, vf_zero());
  }
  for (int64_t b = b0; b <= b1; ++b) {
    const void* pool = b < b1 ? a->v : a->k;  // after the last V: K of the next piece, if any
    int64_t next = b < b1 || (b + 1) * LW_PAGE <= run.position(n - 1) ? b + 1 : b;
    block_output(run, b, block_of(a, pool, run.slot(), next, run.kvh));
  }
}

// All pieces in order; total, total_m and total_sum of every q row.
void run_pieces(const Run& run) {
  const LwAttention* a = run.a;
  int64_t n = run.q_rows(), width = padded(a->d);
  const Scratch& s = run.s;
  load_q(run);
  int64_t last = run.position(n - 1) / PIECE;
  for (int64_t piece = first_seen(a, run.position(0)) / PIECE; piece <= last; ++piece) {
    run_piece(run, piece);
    for (int64_t i = 0; i < n; ++i) {
      if (s.sum[i] < 0.0f) continue;
      float *total = s.total + i * LD, *o = s.o + i * LD;
      if (piece == first_seen(a, run.position(i)) / PIECE) {
        s.total_m[i] = s.m[i];
        s.total_sum[i] = s.sum[i];
        for (int64_t c = 0; c < width; c += VF_N) vf_store(total + c, vf_load(o + c));
      } else {
        lw_att_merge(s.total_m + i, s.total_sum + i, total, s.m[i], s.sum[i], o, width);
      }
    }
  }
}

// Where the finished heads of a row go first: the caller's rows, or scratch.
float* place_for(const LwAttention* a, float* spare, int64_t row, int64_t h0) {
  return a->out ? a->out + row * a->ostride + h0 * a->d : spare;
}

void deliver(const LwAttention* a, const float* heads, int64_t row, int64_t h0, int64_t nheads) {
  if (a->epilogue) a->epilogue(a->env, heads, row, h0, (int32_t)nheads);
}

void deliver_zeros(const LwAttention* a, float* spare, int64_t row, int64_t h0, int64_t nheads) {
  float* to = place_for(a, spare, row, h0);
  for (int64_t c = 0; c < nheads * a->d; ++c) to[c] = 0.0f;
  deliver(a, to, row, h0, nheads);
}

void deliver_run(const Run& run) {
  const LwAttention* a = run.a;
  for (int64_t r = 0; r < run.rows; ++r) {
    float* to = place_for(a, run.s.o, run.row0 + r, run.h0);
    for (int64_t h = 0; h < run.heads; ++h) {
      int64_t i = r * run.heads + h;
      if (a->sinks)
        lw_att_sink(run.s.total_m[i], run.s.total_sum + i, run.s.total + i * LD,
                    a->sinks[run.h0 + h], a->d);
      lw_att_finish(to + h * a->d, run.s.total + i * LD, run.s.total_sum[i], a->d);
    }
    deliver(a, to, run.row0 + r, run.h0, run.heads);
  }
}

// How many rows from `row` on (below `end`) continue its run.
int64_t run_length(const LwAttention* a, int64_t row, int64_t end) {
  int64_t n = 1;
  while (row + n < end && a->slots[row + n] == a->slots[row] &&
         (int64_t)a->positions[row + n] == (int64_t)a->positions[row] + n &&
         row_present(a, row + n))
    ++n;
  return n;
}

void tile(const LwAttention* a, int64_t kvh, int64_t row, int64_t end) {
  Run run = {a, carve(a), row, 1, kvh, 0, 0};
  int64_t group = a->heads / a->kv_heads;
  for (; row < end; row += run.rows) {
    bool present = row_present(a, row);
    run.row0 = row;
    run.rows = present ? run_length(a, row, end) : 1;
    int64_t step = heads_at_once(group, run.rows);
    for (int64_t h = 0; h < group; h += step) {
      run.h0 = kvh * group + h;
      run.heads = least(step, group - h);
      if (present) {
        run_pieces(run);
        deliver_run(run);
      } else {
        deliver_zeros(a, run.s.o, row, run.h0, run.heads);
      }
    }
  }
}

// The pieces of one head of a row, merged ascending, finished into `to`.
void merge_head(const LwAttention* a, const Scratch& s, int64_t row, int64_t head, float* to) {
  int64_t p = a->positions[row], first = first_seen(a, p) / PIECE, stride = a->d + 2;
  const float* part = a->partial + ((row * a->heads + head) * a->pieces + first) * stride;
  float m = part[0], sum = part[1];
  for (int64_t c = 0; c < a->d; ++c) s.total[c] = part[2 + c];
  for (int64_t piece = first + 1; piece <= p / PIECE; ++piece) {
    part += stride;
    lw_att_merge(&m, &sum, s.total, part[0], part[1], part + 2, a->d);
  }
  if (a->sinks) lw_att_sink(m, &sum, s.total, a->sinks[head], a->d);
  lw_att_finish(to, s.total, sum, a->d);
}

}  // namespace

LW_EXPORT int64_t LW_NAME(lw_attention_items_)(int64_t rows, int64_t kv_heads) {
  return kv_heads * ((rows + LW_ATTENTION_TILE - 1) / LW_ATTENTION_TILE);
}

LW_EXPORT int64_t LW_NAME(lw_attention_scratch_)(int64_t d, int64_t group) {
  (void)d;
  return (most_q_rows(group) * LD * 4 + LW_PAGE * LW_ATT_D + 4 * LW_ATT_Q) * (int64_t)sizeof(float);
}

LW_EXPORT void LW_NAME(lw_attention_)(const LwAttention* a, int64_t item0, int64_t item1) {
  int64_t tiles = (a->rows + LW_ATTENTION_TILE - 1) / LW_ATTENTION_TILE;
  for (int64_t item = item0; item < item1; ++item) {
    int64_t row = item % tiles * LW_ATTENTION_TILE;
    tile(a, item / tiles, row, least(row + LW_ATTENTION_TILE, a->rows));
  }
}

LW_EXPORT void LW_NAME(lw_attention_piece_)(const LwAttention* a, int64_t item0, int64_t item1) {
  int64_t group = a->heads / a->kv_heads, stride = a->d + 2, step = heads_at_once(group, 1);
  Run run = {a, carve(a), 0, 1, 0, 0, 0};
  for (int64_t item = item0; item < item1; ++item) {
    int64_t piece = item % a->pieces, row = item / a->pieces / a->kv_heads;
    if (!row_in_reach(a, row)) continue;
    int64_t p = a->positions[row];
    int64_t from = most(piece * PIECE, first_seen(a, p)), to = least((piece + 1) * PIECE - 1, p);
    if (from > to || !pages_there(a, a->slots[row], from, to)) continue;
    run.row0 = row;
    run.kvh = item / a->pieces % a->kv_heads;
    for (int64_t h = 0; h < group; h += step) {
      run.h0 = run.kvh * group + h;
      run.heads = least(step, group - h);
      load_q(run);
      run_piece(run, piece);
      for (int64_t i = 0; i < run.heads; ++i) {
        float* part = a->partial + ((row * a->heads + run.h0 + i) * a->pieces + piece) * stride;
        part[0] = run.s.m[i];
        part[1] = run.s.sum[i];
        for (int64_t c = 0; c < a->d; ++c) part[2 + c] = run.s.o[i * LD + c];
      }
    }
  }
}

LW_EXPORT void LW_NAME(lw_attention_merge_)(const LwAttention* a, int64_t item0, int64_t item1) {
  int64_t group = a->heads / a->kv_heads, step = heads_at_once(group, 1);
  Scratch s = carve(a);
  for (int64_t row = item0; row < item1; ++row) {
    bool present = row_present(a, row) && (int64_t)a->positions[row] / PIECE < a->pieces;
    for (int64_t h0 = 0, nheads; h0 < a->heads; h0 += nheads) {
      nheads = least(step, group - h0 % group);
      if (!present) {
        deliver_zeros(a, s.o, row, h0, nheads);
        continue;
      }
      float* to = place_for(a, s.o, row, h0);
      for (int64_t h = 0; h < nheads; ++h) merge_head(a, s, row, h0 + h, to + h * a->d);
      deliver(a, to, row, h0, nheads);
    }
  }
}
