// The gated delta recurrence by chunks of 16 rows: a recipe of its own, for prompts.
//
// With S0 the state before a chunk, a row's u and o are products with S0, decayed to the row, plus
// what the chunk's earlier rows added; so the state is read twice and written once per chunk, and
// the rows' chains run side by side.  D(i, t) is the product of alpha over rows i+1..t, ascending,
// g(t) that over rows 0..t; lanes are outputs.  Every sum is an fma chain, ascending:
//   u = fl(g S0 k), then + fl(D(i, .) k_i.k) c_i for i < t;   c = fl(beta fl(v - u))
//   o = fl(g S0 q), then + fl(D(i, t) k_i.q) c_i for i <= t
//   S = fl(g S0), then + c_i fl(D(i, last) k_i)
// where u takes g and D to row t (decay before), or to row t - 1 (after).
#ifndef LW_CALLS_CHUNK_H
#define LW_CALLS_CHUNK_H

constexpr int64_t LW_CHUNK = 16;

// Of one chunk and head; a row beyond `rows` is zeros.
struct LwChunk {
  float *s, *k, *q;        // the state [K][V], k and q [K][16]
  float *kk, *kq, *decay;  // [t][i]: dot products and D
  float *c, *u, *o;        // [16][V]
  float grow[LW_CHUNK], alpha[LW_CHUNK];
  int64_t rows, width, inner;
};

// out[t][i] = chain over K of k_i times x_t.
LW_INLINE void lw_chunk_dots(const LwChunk* m, const float* x, float* out) {
  for (int64_t t = 0; t < m->rows; ++t)
    for (int64_t i = 0; i < LW_CHUNK; i += VF_N) {
      vf sum = vf_zero();
      for (int64_t e = 0; e < m->inner; ++e)
        sum = vf_fma(vf_load(m->k + e * LW_CHUNK + i), vf_set(x[e * LW_CHUNK + t]), sum);
      vf_store(out + t * LW_CHUNK + i, sum);
    }
}

// out[t][j] = chain over K of the state times x_t, 8 rows at once.
LW_INLINE void lw_chunk_state(const LwChunk* m, const float* x, float* out) {
  for (int64_t t0 = 0; t0 < m->rows; t0 += 8)
    for (int64_t j = 0; j < m->width; j += VF_N) {
      const int64_t left = lw_least(m->width - j, VF_N);
      vf sum[8];
      for (int r = 0; r < 8; ++r) sum[r] = vf_zero();
      for (int64_t e = 0; e < m->inner; ++e) {
        const vf s = vf_load_n(m->s + e * m->width + j, left);
        for (int r = 0; r < 8; ++r) sum[r] = vf_fma(s, vf_set(x[e * LW_CHUNK + t0 + r]), sum[r]);
      }
      for (int r = 0; r < 8; ++r) vf_store_n(out + (t0 + r) * m->width + j, sum[r], left);
    }
}

LW_INLINE void lw_chunk_decays(LwChunk* m) {
  for (int64_t t = 0; t < m->rows; ++t) {
    m->grow[t] = t ? m->grow[t - 1] * m->alpha[t] : m->alpha[0];
    for (int64_t i = 0; i < t; ++i)
      m->decay[t * LW_CHUNK + i] = m->decay[(t - 1) * LW_CHUNK + i] * m->alpha[t];
    m->decay[t * LW_CHUNK + t] = 1.0f;
  }
}

// c and o of every row, from the products with the state.
LW_INLINE void lw_chunk_rows(const LwChunk* m, const float* v, const float* beta, int64_t stride,
                             int64_t beta_stride, bool before, float* out) {
  for (int64_t t = 0; t < m->rows; ++t) {
    const float *to = m->decay + t * LW_CHUNK, *from = before || !t ? to : to - LW_CHUNK;
    const float first = before ? m->grow[t] : t ? m->grow[t - 1] : 1.0f;
    for (int64_t j = 0; j < m->width; j += VF_N) {
      const int64_t left = lw_least(m->width - j, VF_N);
      vf u = vf_mul(vf_set(first), vf_load_n(m->u + t * m->width + j, left));
      for (int64_t i = 0; i < t; ++i)
        u = vf_fma(vf_set(from[i] * m->kk[t * LW_CHUNK + i]),
                   vf_load_n(m->c + i * m->width + j, left), u);
      const vf c = vf_mul(vf_set(beta[t * beta_stride]),
                          vf_sub(vf_load_n(v + t * stride + j, left), u));
      vf_store_n(m->c + t * m->width + j, c, left);
      vf o = vf_mul(vf_set(m->grow[t]), vf_load_n(m->o + t * m->width + j, left));
      for (int64_t i = 0; i <= t; ++i)
        o = vf_fma(vf_set(to[i] * m->kq[t * LW_CHUNK + i]),
                   vf_load_n(m->c + i * m->width + j, left), o);
      vf_store_n(out + t * stride + j, o, left);
    }
  }
}

LW_INLINE void lw_chunk_carry(const LwChunk* m) {
  const float* decay = m->decay + (m->rows - 1) * LW_CHUNK;
  for (int64_t e = 0; e < m->inner; ++e)
    for (int64_t j = 0; j < m->width; j += VF_N) {
      const int64_t left = lw_least(m->width - j, VF_N);
      float* at = m->s + e * m->width + j;
      vf s = vf_mul(vf_set(m->grow[m->rows - 1]), vf_load_n(at, left));
      for (int64_t i = 0; i < m->rows; ++i)
        s = vf_fma(vf_load_n(m->c + i * m->width + j, left),
                   vf_set(decay[i] * m->k[e * LW_CHUNK + i]), s);
      vf_store_n(at, s, left);
    }
}

LW_INLINE void lw_chunk_head(const LwCall* k, int64_t slot, int64_t h, int64_t at, int64_t count) {
  const int64_t heads = k->d[1], width = k->d[2], inner = k->d[3];
  const int64_t a = k->d[5] == 1 ? 1 : heads, b = k->d[6] == 1 ? 1 : heads;
  float* state = (float*)k->out[0] + (slot * heads + h) * width * inner;
  uint8_t* room = k->scratch;
  LwChunk m;
  m.k = (float*)lw_take(&room, 4 * LW_CHUNK * inner);
  m.q = (float*)lw_take(&room, 4 * LW_CHUNK * inner);
  float** tables[] = {&m.kk, &m.kq, &m.decay};
  for (float** p : tables) *p = (float*)lw_take(&room, 4 * LW_CHUNK * LW_CHUNK);
  float** rows[] = {&m.c, &m.u, &m.o};
  for (float** p : rows) *p = (float*)lw_take(&room, 4 * LW_CHUNK * width);
  m.s = (float*)lw_take(&room, 4 * width * inner);
  m.width = width, m.inner = inner;
  for (int64_t j = 0; j < width; ++j)
    for (int64_t e = 0; e < inner; ++e) m.s[e * width + j] = state[j * inner + e];
  for (int64_t done = 0; done < count; done += LW_CHUNK) {
    m.rows = lw_least(count - done, LW_CHUNK);
    const int64_t t0 = at + done, row = t0 * heads + h;
    for (int64_t e = 0; e < inner; ++e)
      for (int64_t t = 0; t < LW_CHUNK; ++t) {
        const int64_t from = (row + t * heads) * inner + e;
        m.k[e * LW_CHUNK + t] = t < m.rows ? lw_floats(k, 2)[from] : 0.0f;
        m.q[e * LW_CHUNK + t] = t < m.rows ? lw_floats(k, 1)[from] : 0.0f;
      }
    const float* alpha = lw_floats(k, 4) + t0 * a + (a == 1 ? 0 : h);
    for (int64_t t = 0; t < m.rows; ++t) m.alpha[t] = alpha[t * a];
    lw_chunk_decays(&m);
    lw_chunk_dots(&m, m.k, m.kk);
    lw_chunk_dots(&m, m.q, m.kq);
    lw_chunk_state(&m, m.k, m.u);
    lw_chunk_state(&m, m.q, m.o);
    lw_chunk_rows(&m, lw_floats(k, 3) + row * width, lw_floats(k, 5) + t0 * b + (b == 1 ? 0 : h),
                  heads * width, b, k->d[7] != 0, (float*)k->out[1] + row * width);
    lw_chunk_carry(&m);
  }
  for (int64_t j = 0; j < width; ++j)
    for (int64_t e = 0; e < inner; ++e) state[j * inner + e] = m.s[e * width + j];
}

LW_INLINE void lw_call_linear_attention_chunked(const LwCall* k) {
  lw_delta_heads<lw_chunk_head>(k);
}

#endif  // LW_CALLS_CHUNK_H
