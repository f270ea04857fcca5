// Attention over the paged pool, compiled once per cache dtype: -DLW_KV=f16, bf16, f32 or q8_0.
//
// Work comes as runs: rows of one slot at consecutive positions, all query heads of a kv head
// together, so that a block of K or V comes from memory once per run.  A run walks the pieces of
// 256 positions in order; see attention.h for the recipe.  Where pages are smaller than a block,
// widening it brings their parts together: from there on all is one.
#include "lw_support.h"

#include "attention_kv.h"

namespace {

constexpr int64_t PIECE = LW_ATTENTION_PIECE;
constexpr int64_t LD = LW_ATT_LD;

int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

// Per thread.  q, s, o: q rows of stride LD; total: the merged outputs; block: one widened K or V.
// row: of each q row, counted from the run's first.
struct Scratch {
  float *q, *s, *o, *total, *block, *m, *sum, *total_m, *total_sum, *ea, *eb;
  int32_t* row;
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
  s.ea = s.total_sum + LW_ATT_Q;
  s.eb = s.ea + LW_ATT_Q;
  s.row = (int32_t*)(s.eb + LW_ATT_Q);
  return s;
}

int64_t first_seen(const LwAttention* a, int64_t position) {
  return a->window > 0 ? most(0, position - a->window + 1) : 0;
}

// Are all pages of positions [from, to] there?
bool pages_there(const LwAttention* a, uint32_t slot, int64_t from, int64_t to) {
  const uint32_t* pages = a->table + (int64_t)slot * a->table_width;
  bool good = true;
  for (int64_t b = from / a->page; b <= to / a->page; ++b) good &= (int64_t)pages[b] < a->pages;
  return good;
}

bool row_in_reach(const LwAttention* a, int64_t row) {
  return (int64_t)a->slots[row] < a->slot_count &&
         (int64_t)a->positions[row] < a->table_width * a->page;
}

bool row_present(const LwAttention* a, int64_t row) {
  if (!row_in_reach(a, row)) return false;
  int64_t p = a->positions[row];
  return pages_there(a, a->slots[row], first_seen(a, p), p);
}

bool scattered(const LwAttention* a) { return a->page < LW_PAGE; }

// A part of the pool: `span` positions of a head.
const lw_kv* part_of(const LwAttention* a, const void* pool, int64_t part, int64_t span,
                     int64_t kvh) {
  int64_t elements = lw_kv_base(a->d, a->kv_heads, kvh, (uint32_t)part, span);
  return (const lw_kv*)pool + (sizeof(lw_kv) == 1 ? elements / 32 * 34 : elements);
}

// A block of 64 positions, which lies together: pages are no smaller.
const lw_kv* block_of(const LwAttention* a, const void* pool, uint32_t slot, int64_t block,
                      int64_t kvh) {
  const uint32_t* pages = a->table + (int64_t)slot * a->table_width;
  int64_t per = a->page / LW_PAGE;
  int64_t part = per == 1 ? pages[block] : pages[block / per] * per + block % per;
  return part_of(a, pool, part, LW_PAGE, kvh);
}

// Bytes of a block of keys or values of one head; how many blocks ahead memory is asked for them:
// 16 KiB, so that the latency passes while others are worked on, and L1 and L2 keep their places.
int64_t block_bytes(const LwAttention* a) {
  return sizeof(lw_kv) == 1 ? a->d * LW_PAGE / 32 * 34 : a->d * LW_PAGE * (int64_t)sizeof(lw_kv);
}
struct Ahead {
  int64_t blocks;
  int32_t k, v;  // lines with each row of keys and of values, in sixteenths
};
Ahead ahead_for(const LwAttention* a) {
  int64_t bytes = block_bytes(a), parts = (bytes + 63) / 64 * 16;
  return {most(1, (16384 + bytes / 2) / bytes), (int32_t)((parts + a->d - 1) / a->d),
          (int32_t)(parts / LW_PAGE)};
}

// A run: rows row0.. of one slot at positions p0.., heads h0.. of kv head kvh.
struct Run {
  const LwAttention* a;
  Scratch s;
  int64_t row0, rows, kvh, h0, heads;
  Ahead ahead;
  int64_t q_rows() const { return rows * heads; }
  int64_t position(int64_t q_row) const { return (int64_t)a->positions[row0] + s.row[q_row]; }
  int64_t first(int64_t q_row) const { return first_seen(a, position(q_row)); }
  uint32_t slot() const { return a->slots[row0]; }
};

void begin_run(const Run& run) {
  const LwAttention* a = run.a;
  for (int64_t r = 0, i = 0; r < run.rows; ++r)
    for (int64_t h = 0; h < run.heads; ++h, ++i) {
      const float* from = a->q + (run.row0 + r) * a->qstride + (run.h0 + h) * a->d;
      for (int64_t c = 0; c < a->d; ++c) run.s.q[i * LD + c] = from[c];
      run.s.row[i] = (int32_t)r;
    }
}

// What is read `ahead.blocks` after the t-th block of a piece, whose keys and then values are
// blocks b0 to b1.  After the last piece come the next head's.
lw_att_ahead ahead_of(const Run& run, int64_t b0, int64_t b1, int64_t t, int32_t rate) {
  const LwAttention* a = run.a;
  if (scattered(a)) return {nullptr, 0};
  int64_t count = b1 - b0 + 1, end = run.position(run.q_rows() - 1) / LW_PAGE + 1, kvh = run.kvh;
  t += run.ahead.blocks;
  const void* pool = t < count || t >= 2 * count ? a->k : a->v;
  int64_t block = b0 + (t < count ? t : t - count);
  if (block >= end) {
    block += run.first(0) / LW_PAGE - end;
    ++kvh;
  }
  if (block >= end || kvh >= a->kv_heads || (kvh > run.kvh && run.rows > 1)) return {nullptr, 0};
  return {(const char*)block_of(a, pool, run.slot(), block, kvh), rate};
}

// A block as f32 in scratch: K [d][64] or V [64][padded d]; of small pages, those that are there.
template <void WIDEN(const lw_kv*, int64_t, int64_t, float*)>
void widen_block(const Run& run, const void* pool, int64_t block, int64_t step) {
  const LwAttention* a = run.a;
  float* to = run.s.block;
  if (!scattered(a)) return WIDEN(block_of(a, pool, run.slot(), block, run.kvh), a->d, LW_PAGE, to);
  const uint32_t* pages = a->table + (int64_t)run.slot() * a->table_width;
  for (int64_t at = 0; at < LW_PAGE; at += a->page) {
    int64_t i = (block * LW_PAGE + at) / a->page;
    if (i < a->table_width && (int64_t)pages[i] < a->pages)
      WIDEN(part_of(a, pool, pages[i], a->page, run.kvh), a->d, a->page, to + at * step);
  }
}

// Is a block widened to f32 once, in scratch, before it is used?  Codes for many rows, as they
// cost a group of rows a fifth more; halves never, as that hides behind the products; what lies in
// small pages always.
bool widens(const Run& run) {
  if (scattered(run.a)) return true;
#if defined(LW_SCALAR)
  return sizeof(lw_kv) < 4 && run.q_rows() > LW_ATT_R;
#else
  return sizeof(lw_kv) == 1 && run.q_rows() > LW_ATT_R;
#endif
}

// Raw score chains of one block into its 64 columns of s.
template <class B>
void block_scores(const Run& run, int64_t block, const B& k, lw_att_ahead ahead) {
  float* s = run.s.s + block % (PIECE / LW_PAGE) * LW_PAGE;
  for (lw_att_groups g(run.q_rows()); g.more(); g.next(), ahead.rate = 0) {
    // columns that the last of these rows sees; the rest stays as it was, and is masked
    int64_t seen = run.position(g.i + g.rows - 1) + 1 - block * LW_PAGE;
    int64_t width = least(LW_PAGE, padded(most(0, seen)));
    lw_att_product(g.rows, run.s.q + g.i * LD, run.a->d, k, s + g.i * LD, width, true, ahead);
  }
}

// Adds positions [from, to) of a block to the outputs of `rows` q rows from i on.
template <class B>
void add_values(const Run& run, int64_t i, int rows, int64_t base, int64_t from, int64_t to,
                const B& v, const lw_att_ahead& ahead) {
  if (from >= to) return;
  const float* p = run.s.s + i * LD + base % PIECE + from;
  lw_att_product(rows, p, to - from, rows_from(v, from), run.s.o + i * LD, padded(run.a->d),
                 false, ahead);
}

// One block's values: what all q rows of a group see goes together, the edges by position.
template <class B>
void block_values(const Run& run, int64_t block, const B& v, lw_att_ahead ahead) {
  const lw_att_ahead none = {nullptr, 0};
  int64_t base = block * LW_PAGE;
  for (lw_att_groups g(run.q_rows()); g.more(); g.next(), ahead.rate = 0) {
    int64_t i = g.i, last = i + g.rows - 1;
    int64_t from = most(0, run.first(last) - base);
    int64_t to = least(LW_PAGE, run.position(i) + 1 - base);
    bool together = from < to;
    for (int64_t r = i, e; r <= last; r = e) {  // the left edge (a window's start), or all of it
      for (e = r + 1; e <= last && run.s.row[e] == run.s.row[r];) ++e;
      int64_t begin = most(0, run.first(r) - base);
      int64_t end = together ? from : least(LW_PAGE, run.position(r) + 1 - base);
      add_values(run, r, (int)(e - r), base, begin, end, v, none);
    }
    if (!together) continue;
    add_values(run, i, g.rows, base, from, to, v, ahead);
    for (int64_t r = i, e; r <= last; r = e) {  // the right edge (the diagonal)
      for (e = r + 1; e <= last && run.s.row[e] == run.s.row[r];) ++e;
      int64_t end = least(LW_PAGE, run.position(r) + 1 - base);
      add_values(run, r, (int)(e - r), base, to, end, v, none);
    }
  }
}

// One piece for all q rows: o and sum of each that sees any of it; m too.  sum < 0: sees nothing.
void run_piece(const Run& run, int64_t piece) {
  const LwAttention* a = run.a;
  const Scratch& s = run.s;
  int64_t n = run.q_rows(), base = piece * PIECE, d = a->d;
  int64_t from = most(base, run.first(0)), last = least(base + PIECE - 1, run.position(n - 1));
  int64_t b0 = from / LW_PAGE, b1 = last / LW_PAGE;
  bool wide = widens(run);
  for (int64_t b = b0; b <= b1; ++b) {
    lw_att_ahead ahead = ahead_of(run, b0, b1, b - b0, run.ahead.k);
    if (wide) widen_block<widen_k>(run, a->k, b, 1);
    if (wide)
      block_scores(run, b, Wide{s.block, LW_PAGE}, ahead);
    else
      block_scores(run, b, keys_of(block_of(a, a->k, run.slot(), b, run.kvh), d), ahead);
  }
  for (int64_t i = 0; i < n; ++i) {
    int64_t begin = most(0, run.first(i) - base), end = least(PIECE, run.position(i) + 1 - base);
    if (begin < end) s.m[i] = lw_att_top(s.s + i * LD, begin, end, a->scale, a->softcap);
  }
  float scale = lw_att_left(a->scale, a->softcap);
  for (int64_t i = 0; i < n; ++i) {
    int64_t begin = most(0, run.first(i) - base), end = least(PIECE, run.position(i) + 1 - base);
    s.sum[i] = begin < end ? lw_att_softmax(s.s + i * LD, begin, end, scale, s.m[i]) : -1.0f;
    for (int64_t c = 0; c < padded(d); c += VF_N) vf_store(s.o + i * LD + c, vf_zero());
  }
  for (int64_t b = b0; b <= b1; ++b) {
    lw_att_ahead ahead = ahead_of(run, b0, b1, b1 + 1 + b - 2 * b0, run.ahead.v);
    bool apart = wide || d % VF_N != 0;  // rows that are no whole vectors
    if (apart) widen_block<widen_v>(run, a->v, b, padded(d));
    if (apart)
      block_values(run, b, Wide{s.block, padded(d)}, ahead);
    else
      block_values(run, b, values_of(block_of(a, a->v, run.slot(), b, run.kvh), d, s.block),
                   ahead);
  }
}

// All pieces in order; total, total_m and total_sum of every q row.
void run_pieces(const Run& run) {
  const LwAttention* a = run.a;
  int64_t n = run.q_rows(), width = padded(a->d);
  const Scratch& s = run.s;
  begin_run(run);
  int64_t last = run.position(n - 1) / PIECE;
  for (int64_t piece = run.first(0) / PIECE; piece <= last; ++piece) {
    run_piece(run, piece);
    for (int64_t i = 0; i < n; ++i) {  // rows that see nothing, or nothing before
      if (s.sum[i] < 0.0f) s.m[i] = s.total_m[i];
      if (piece == run.first(i) / PIECE) s.total_m[i] = s.m[i];
    }
    if (piece > run.first(0) / PIECE) lw_att_weights(s.total_m, s.m, n, s.ea, s.eb);
    for (int64_t i = 0; i < n; ++i) {
      if (s.sum[i] < 0.0f) continue;
      float *total = s.total + i * LD, *o = s.o + i * LD;
      if (piece == run.first(i) / PIECE) {
        s.total_sum[i] = s.sum[i];
        for (int64_t c = 0; c < width; c += VF_N) vf_store(total + c, vf_load(o + c));
      } else {
        lw_att_merge(s.total_sum + i, total, s.ea[i], s.sum[i], o, s.eb[i], width);
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
  Run run = {a, carve(a), row, 1, kvh, 0, 0, ahead_for(a)};
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

// The pieces of one head of a row, merged ascending, finished into `to`.  The weights of the merges
// hang on the maxima alone, so they come first, a number of pieces at a time.
void merge_head(const LwAttention* a, const Scratch& s, int64_t row, int64_t head, float* to) {
  int64_t p = a->positions[row], piece = first_seen(a, p) / PIECE, stride = a->d + 2;
  const float* part = a->partial + ((row * a->heads + head) * a->pieces + piece) * stride;
  float top = part[0], sum = part[1];
  for (int64_t c = 0; c < a->d; ++c) s.total[c] = part[2 + c];
  for (++piece; piece <= p / PIECE;) {
    int64_t n = least(LW_ATT_Q, p / PIECE + 1 - piece);
    for (int64_t i = 0; i < n; ++i) {
      s.m[i] = part[(i + 1) * stride];
      s.total_m[i] = top;
      top = top > s.m[i] ? top : s.m[i];
    }
    lw_att_weights(s.total_m, s.m, n, s.ea, s.eb);
    for (int64_t i = 0; i < n; ++i) {
      part += stride;
      lw_att_merge(&sum, s.total, s.ea[i], part[1], part + 2, s.eb[i], a->d);
    }
    piece += n;
  }
  if (a->sinks) lw_att_sink(top, &sum, s.total, a->sinks[head], a->d);
  lw_att_finish(to, s.total, sum, a->d);
}

}  // namespace

LW_EXPORT int64_t LW_NAME(lw_attention_items_)(int64_t rows, int64_t kv_heads) {
  return kv_heads * ((rows + LW_ATTENTION_TILE - 1) / LW_ATTENTION_TILE);
}

LW_EXPORT int64_t LW_NAME(lw_attention_scratch_)(int64_t d, int64_t group) {
  (void)d;
  return (most_q_rows(group) * LD * 4 + LW_PAGE * LW_ATT_D + 7 * LW_ATT_Q) * (int64_t)sizeof(float);
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
  Run run = {a, carve(a), 0, 1, 0, 0, 0, ahead_for(a)};
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
      begin_run(run);
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
  Scratch s = carve(a);
  bool present = false;
  int64_t row = item0 / a->heads, head = item0 % a->heads;
  for (int64_t item = item0; item < item1; ++item, ++head) {
    if (head == a->heads) ++row, head = 0;
    if (item == item0 || head == 0)
      present = row_present(a, row) && (int64_t)a->positions[row] / PIECE < a->pieces;
    if (!present) {
      deliver_zeros(a, s.o, row, head, 1);
      continue;
    }
    float* to = place_for(a, s.o, row, head);
    merge_head(a, s, row, head, to);
    deliver(a, to, row, head, 1);
  }
}
