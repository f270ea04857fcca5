// Sampling a row of logits: see sample.h for the recipe.
//
// What top-k and top-p keep is always a beginning of one order (value descending, index ascending),
// and min-p keeps what is not below a value; so a "cut" (least value, and the last index that still
// counts at that value) says it all, and only the entries near the top are ever sorted.
#include "lw_support.h"

#include "norm.h"
#include "sample.h"

namespace {

// Buckets by the upper bits of a probability: it lies in [0, 1], so its bits are below 2^30.
constexpr int BUCKETS = 512, SHIFT = 21;
constexpr int DIGITS = 1024, DIGIT = 10;  // of the radix sort: three digits
constexpr int64_t FEW = 4096;             // entries that are quickly sorted

// What the planner sets aside: 16 n + 4096 bytes.
struct Scratch {
  float* p;                  // n probabilities
  float* running;            // n
  uint32_t *index, *index2;  // n each: what is sorted, and room to sort into
  uint32_t* count;           // BUCKETS, and of a sort DIGITS
  float* mass;               // BUCKETS, the second half of the DIGITS
};

Scratch carve(void* scratch, int64_t n) {
  Scratch s;
  s.count = (uint32_t*)scratch;
  s.mass = (float*)(s.count + BUCKETS);
  s.p = (float*)(s.count + DIGITS);
  s.running = s.p + n;
  s.index = (uint32_t*)(s.running + n);
  s.index2 = s.index + n;
  return s;
}

// Kept: p > value, or p == value and index <= last.
struct Cut {
  float value;
  uint32_t last;
};
constexpr Cut EVERYTHING = {0.0f, 0xFFFFFFFFu};

bool kept(Cut cut, float p, uint32_t i) {
  return p > cut.value || (p == cut.value && i <= cut.last);
}

uint32_t key_of(float p) { return lw_bits_f32(p); }

// Entries not below `least`, in index order; returns how many.
int64_t gather(const Scratch& s, int64_t n, float least) {
  int64_t found = 0;
  for (int64_t i = 0; i < n; i += VF_N) {
    int64_t left = n - i < VF_N ? n - i : VF_N;
    vm some = vm_and(vf_ge(vf_load_n(s.p + i, left), vf_set(least)), vm_first(left));
    for (uint32_t bits = vm_bits(some); bits; bits &= bits - 1) {
      s.index[found++] = (uint32_t)(i + __builtin_ctz(bits));
    }
  }
  return found;
}

// One stable pass of a radix sort, descending by one digit of the probability's bits.
void radix_pass(const float* p, const uint32_t* from, uint32_t* to, int64_t n, int shift,
                uint32_t* count) {
  for (int b = 0; b < DIGITS; ++b) count[b] = 0;
  for (int64_t i = 0; i < n; ++i) ++count[(key_of(p[from[i]]) >> shift) & (DIGITS - 1)];
  uint32_t at = 0;
  for (int b = DIGITS - 1; b >= 0; --b) {
    uint32_t c = count[b];
    count[b] = at;
    at += c;
  }
  for (int64_t i = 0; i < n; ++i)
    to[count[(key_of(p[from[i]]) >> shift) & (DIGITS - 1)]++] = from[i];
}

// The gathered entries by (value descending, index ascending); the result lies in index2.
void sort_gathered(const Scratch& s, int64_t n) {
  if (n <= 64) {
    for (int64_t i = 0; i < n; ++i) {  // insertion: later equal values stay behind
      int64_t j = i;
      for (; j > 0 && s.p[s.index2[j - 1]] < s.p[s.index[i]]; --j) s.index2[j] = s.index2[j - 1];
      s.index2[j] = s.index[i];
    }
    return;
  }
  radix_pass(s.p, s.index, s.index2, n, 0, s.count);
  radix_pass(s.p, s.index2, s.index, n, DIGIT, s.count);
  radix_pass(s.p, s.index, s.index2, n, 2 * DIGIT, s.count);
}

// The lowest bucket that must be gathered so that k entries, or about `mass`, are there.
uint32_t bucket_for(const Scratch& s, int64_t n, int64_t k, float mass) {
  for (int b = 0; b < BUCKETS; ++b) s.count[b] = 0, s.mass[b] = 0.0f;
  for (int64_t i = 0; i < n; ++i) {
    uint32_t b = key_of(s.p[i]) >> SHIFT;
    ++s.count[b];
    s.mass[b] += s.p[i];
  }
  int64_t entries = 0;
  float sum = 0.0f;
  for (uint32_t b = BUCKETS - 1; b > 0; --b) {
    entries += s.count[b];
    sum += s.mass[b];
    if (entries >= k || (entries > 0 && sum >= mass)) return b;
  }
  return 0;
}

// Gathers and sorts a beginning of the order: at least k entries, or about `mass`, or all.  The
// entries within 2^-10 of the largest are tried first: mostly they suffice, and they are few.
int64_t sort_top(const Scratch& s, int64_t n, int64_t k, float mass, float largest) {
  int64_t found = gather(s, n, lw_f32_of_bits(key_of(largest * 0x1p-10f) >> SHIFT << SHIFT));
  float sum = 0.0f;
  for (int64_t i = 0; i < found; ++i) sum += s.p[s.index[i]];
  if (!(found >= k || sum >= mass) || found > FEW)
    found = gather(s, n, lw_f32_of_bits(bucket_for(s, n, k, mass) << SHIFT));
  sort_gathered(s, found);
  return found;
}

// The sum of what a cut keeps, by the Sums recipe over all n slots.
float kept_total(const Scratch& s, int64_t n, Cut cut) {
  for (int64_t i = 0; i < n; ++i) s.running[i] = kept(cut, s.p[i], (uint32_t)i) ? s.p[i] : 0.0f;
  return lw_sum(s.running, n);
}

Cut cut_top_k(const Scratch& s, int64_t n, int64_t k, float largest) {
  sort_top(s, n, k, __builtin_inff(), largest);
  return {s.p[s.index2[k - 1]], s.index2[k - 1]};
}

// Walks the order within `before`; true when the bound was reached inside the gathered entries.
bool walk_top_p(const Scratch& s, int64_t found, Cut before, float bound, Cut* cut) {
  float running = 0.0f;
  for (int64_t i = 0; i < found; ++i) {
    float p = s.p[s.index2[i]];
    if (!kept(before, p, s.index2[i])) return true;  // the order ends here: all of it stays
    if (i > 0 && !(running < bound)) return true;
    running += p;
    *cut = {p, s.index2[i]};
  }
  return !(running < bound);
}

Cut cut_top_p(const Scratch& s, int64_t n, float top_p, Cut before, float largest) {
  float bound = top_p * kept_total(s, n, before);
  Cut cut = before;
  int64_t found = sort_top(s, n, n, bound * 1.001f, largest);
  if (walk_top_p(s, found, before, bound, &cut) || found == n) return cut;
  found = gather(s, n, 0.0f);  // the walk's rounding fell short of the estimate's: rare
  sort_gathered(s, found);
  walk_top_p(s, found, before, bound, &cut);
  return cut;
}

// Of entries in s.index, with running sums in s.running, the first above draw * the last.
uint32_t drawn(const Scratch& s, int64_t found, float draw) {
  draw = draw >= 0.0f ? (draw < 1.0f ? draw : 1.0f - 0x1p-24f) : 0.0f;
  float target = draw * s.running[found - 1];
  int64_t low = 0, high = found - 1;  // the last one always is
  while (low < high) {
    int64_t middle = (low + high) / 2;
    if (s.running[middle] > target)
      high = middle;
    else
      low = middle + 1;
  }
  return s.index[low];
}

uint32_t draw_from(const Scratch& s, int64_t n, Cut cut, float draw) {
  float running = 0.0f;
  int64_t found = 0;
  for (int64_t i = 0; i < n; i += VF_N) {
    int64_t left = n - i < VF_N ? n - i : VF_N;
    vm some = vm_and(vf_ge(vf_load_n(s.p + i, left), vf_set(cut.value)), vm_first(left));
    for (uint32_t bits = vm_bits(some); bits; bits &= bits - 1) {
      int64_t j = i + __builtin_ctz(bits);
      if (s.p[j] == 0.0f || !kept(cut, s.p[j], (uint32_t)j)) continue;
      running += s.p[j];
      s.running[found] = running;
      s.index[found++] = (uint32_t)j;
    }
  }
  return drawn(s, found, draw);
}

// z = l / T, then probabilities; T is a positive number.
void probabilities(const float* logits, int64_t n, float temperature, float* p) {
  vf by = vf_set(1.0f / temperature);
  for (int64_t i = 0; i < n; i += VF_N) {
    int64_t left = n - i < VF_N ? n - i : VF_N;
    vf_store_n(p + i, vf_mul(vf_load_n(logits + i, left), by), left);
  }
  lw_softmax(p, n, p);
}

// The steps between logits and probabilities: e = exp(z - most) of all into s.p, and their Sums.
float weights(const float* logits, int64_t n, float by, float most, float* e) {
  vf scale = vf_set(by), m = vf_set(most);
  float total = 0.0f;
  for (int64_t at = 0; at < n; at += LW_SUM_PIECE) {
    int64_t end = n - at < LW_SUM_PIECE ? n : at + LW_SUM_PIECE;
    for (int64_t i = at; i < end; i += VF_N) {
      int64_t left = end - i < VF_N ? end - i : VF_N;
      vf x = vf_sub(vf_mul(vf_load_n(logits + i, left), scale), m);
      bool deep = VF_SCALES || vm_any(vf_lt(x, vf_set(-86.0f)));
      vf_store_n(e + i, deep ? lw_exp_fall<false>(x) : lw_exp_fall<true>(x), left);
    }
    total += lw_sum(e + at, end - at);
  }
  return total;
}

// Sums over all n slots of what a cut keeps; `order`: entries in index order, all that it keeps
// among them.  Pieces without any add +0.
float kept_total_of(const Scratch& s, const uint32_t* order, int64_t found, Cut cut) {
  float slots[LW_SUM_PIECE] = {}, total = 0.0f;
  for (int64_t i = 0; i < found;) {
    int64_t piece = order[i] / LW_SUM_PIECE, begin = i;
    for (; i < found && order[i] / LW_SUM_PIECE == piece; ++i)
      if (kept(cut, s.p[order[i]], order[i])) slots[order[i] % LW_SUM_PIECE] = s.p[order[i]];
    total += lw_sum(slots, LW_SUM_PIECE);
    for (; begin < i; ++begin) slots[order[begin] % LW_SUM_PIECE] = 0.0f;
  }
  return total;
}

// With a top-k that is small beside n: probabilities are made of the few entries near the top
// alone.  False, and the token is not touched, where those do not tell.
bool sample_near(const Scratch& s, const float* logits, int64_t n, float by, uint32_t top,
                 int64_t top_k, float top_p, float min_p, float draw, uint32_t* token) {
  const float inf = __builtin_inff(), most_z = logits[top] * by;
  if (top_k > FEW / 8 || n < 4 * FEW || !(by < inf) || !(most_z < inf && most_z > -inf))
    return false;
  const float least = 0x1p-10f, total = weights(logits, n, by, most_z, s.p);
  int64_t found = gather(s, n, least);
  if (found < top_k || found > FEW) return false;
  uint32_t* order = (uint32_t*)s.running + n - found;  // as gathered: sorting uses up the list
  for (int64_t i = 0; i < found; ++i) {
    order[i] = s.index[i];
    s.p[s.index[i]] /= total;
  }
  sort_gathered(s, found);
  Cut cut = {s.p[s.index2[top_k - 1]], s.index2[top_k - 1]};
  if (!(cut.value > least / total)) return false;  // what was not gathered may be as probable
  const Cut before = cut;
  if (top_p < 1.0f)
    walk_top_p(s, found, before, top_p * kept_total_of(s, order, found, before), &cut);
  float lowest = (min_p < 1.0f ? min_p : 1.0f) * s.p[top];
  if (lowest > cut.value) cut = {lowest, 0xFFFFFFFFu};
  float running = 0.0f;
  int64_t count = 0;
  for (int64_t i = 0; i < found; ++i) {
    const uint32_t j = order[i];
    if (s.p[j] == 0.0f || !kept(cut, s.p[j], j)) continue;
    running += s.p[j];
    s.running[count] = running;
    s.index[count++] = j;
  }
  *token = drawn(s, count, draw);
  return true;
}

}  // namespace

LW_EXPORT int64_t lw_sample_scratch(int64_t n) { return (n * 4 + DIGITS) * 4; }

LW_EXPORT uint32_t lw_argmax(const float* logits, int64_t n) {
  vf best = vf_set(-__builtin_inff());
  for (int64_t i = 0; i < n; i += VF_N) {  // a NaN never compares greater
    int64_t left = n - i < VF_N ? n - i : VF_N;
    vf x = vf_load_n(logits + i, left);
    best = vf_select(vm_and(vf_gt(x, best), vm_first(left)), x, best);
  }
  vf top = vf_set(vf_hmax(best));
  for (int64_t i = 0; i < n; i += VF_N) {
    int64_t left = n - i < VF_N ? n - i : VF_N;
    vm same = vm_and(vf_eq(vf_load_n(logits + i, left), top), vm_first(left));
    if (vm_any(same)) return (uint32_t)(i + __builtin_ctz(vm_bits(same)));
  }
  return 0;
}

LW_EXPORT void lw_sample_row(const float* logits, int64_t n, float temperature, uint32_t top_k,
                             float top_p, float min_p, float draw, uint32_t top, uint32_t* token,
                             void* scratch) {
  const bool known = top != LW_NO_TOKEN && (int64_t)top < n;
  float largest = known ? logits[top] : lw_max(logits, n), inf = __builtin_inff();
  *token = LW_NO_TOKEN;
  if (n <= 0 || largest != largest || largest == inf) return;
  const bool greedy = !(temperature > 0.0f);
  if (!greedy && largest == -inf) return;  // nothing has a weight
  *token = known ? top : lw_argmax(logits, n);
  if (greedy) return;
  Scratch s = carve(scratch, n);
  if (top_k > 0 && sample_near(s, logits, n, 1.0f / temperature, *token, top_k, top_p, min_p,
                               draw, token))
    return;
  probabilities(logits, n, temperature, s.p);
  if (s.p[*token] != s.p[*token]) return;  // a temperature so small that l / T overflows: the top
  float most = s.p[*token];  // rounding keeps order
  Cut cut = EVERYTHING;
  if (top_k > 0 && (int64_t)top_k < n) cut = cut_top_k(s, n, top_k, most);
  if (top_p < 1.0f) cut = cut_top_p(s, n, top_p, cut, most);
  float least = (min_p < 1.0f ? min_p : 1.0f) * most;
  if (least > cut.value) cut = {least, 0xFFFFFFFFu};
  *token = draw_from(s, n, cut, draw);
}
