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
//
// alpha per channel: g and D are of a channel e, and what they scale is inside the chains over K.
// A key decays with the rows, k_i(t) = fl(alpha_t k_i(t - 1)) from k_i(i) = k_i: products only, as
// in the recurrence, so that nothing is divided.
//   u = chain of S0 fl(g k), then + (chain of k_i(.) k) c_i;  o with fl(g q) and q likewise;
//   S = fl(g S0), then + c_i k_i(last)
#ifndef LW_CALLS_CHUNK_H
#define LW_CALLS_CHUNK_H

constexpr int64_t LW_CHUNK = 16;

// Of one chunk and head; a row beyond `rows` is zeros.
struct LwChunk {
  float *s, *k, *q;        // the state [K][V], k and q [K][16]
  float *kk, *kq, *decay;  // [t][i]: dot products and D
  float *c, *u, *o;        // [16][V]
  float *gain;             // [K]: what the state keeps
  float *by, *gk, *gq;     // alpha per channel: alpha, g k and g q, [K][16]
  float grow[LW_CHUNK], alpha[LW_CHUNK];
  int64_t rows, width, inner;
};

// out[t][i] = chain over K of k_i times x_t, 8 rows at once.
LW_INLINE void lw_chunk_dots(const LwChunk* m, const float* x, float* out) {
  for (int64_t t0 = 0; t0 < m->rows; t0 += 8)
    for (int64_t i = 0; i < LW_CHUNK; i += VF_N) {
      vf sum[8];
      for (int r = 0; r < 8; ++r) sum[r] = vf_zero();
      for (int64_t e = 0; e < m->inner; ++e) {
        const vf k = vf_load(m->k + e * LW_CHUNK + i);
        for (int r = 0; r < 8; ++r) sum[r] = vf_fma(k, vf_set(x[e * LW_CHUNK + t0 + r]), sum[r]);
      }
      for (int r = 0; r < 8; ++r) vf_store(out + (t0 + r) * LW_CHUNK + i, sum[r]);
    }
}

// out[t][j] = chain over K of the state times x_t, 8 rows at once; n lanes of j.
LW_INLINE void lw_chunk_lanes(const LwChunk* m, const float* x, float* out, int64_t j, int64_t n) {
  for (int64_t t0 = 0; t0 < m->rows; t0 += 8) {
    vf sum[8];
    for (int r = 0; r < 8; ++r) sum[r] = vf_zero();
    for (int64_t e = 0; e < m->inner; ++e) {
      const float* at = m->s + e * m->width + j;
      const vf s = n == VF_N ? vf_load(at) : vf_load_n(at, n);
      for (int r = 0; r < 8; ++r) sum[r] = vf_fma(s, vf_set(x[e * LW_CHUNK + t0 + r]), sum[r]);
    }
    for (int r = 0; r < 8; ++r) vf_store_n(out + (t0 + r) * m->width + j, sum[r], n);
  }
}
LW_INLINE void lw_chunk_state(const LwChunk* m, const float* x, float* out) {
  int64_t j = 0;
  for (; j + VF_N <= m->width; j += VF_N) lw_chunk_lanes(m, x, out, j, VF_N);
  if (j < m->width) lw_chunk_lanes(m, x, out, j, m->width - j);
}

LW_INLINE void lw_chunk_decays(LwChunk* m) {
  for (int64_t t = 0; t < m->rows; ++t) {
    m->grow[t] = t ? m->grow[t - 1] * m->alpha[t] : m->alpha[0];
    for (int64_t i = 0; i < t; ++i)
      m->decay[t * LW_CHUNK + i] = m->decay[(t - 1) * LW_CHUNK + i] * m->alpha[t];
    m->decay[t * LW_CHUNK + t] = 1.0f;
  }
  for (int64_t e = 0; e < m->inner; ++e) m->gain[e] = m->grow[m->rows - 1];
}

// The same of channels: what is left for `lw_chunk_rows` to scale is 1.  `alpha`: of row 0, rows
// `stride` apart.
LW_INLINE void lw_chunk_gains(LwChunk* m, const float* alpha, int64_t stride, bool before) {
  for (int64_t t = 0; t < m->rows; ++t) {
    m->grow[t] = 1.0f;
    for (int64_t i = 0; i <= t; ++i) m->decay[t * LW_CHUNK + i] = 1.0f;
  }
  for (int64_t e = 0; e < m->inner; ++e) {
    float g = 1.0f;
    for (int64_t t = 0, at = e * LW_CHUNK; t < LW_CHUNK; ++t, ++at) {
      const float last = g;
      m->by[at] = t < m->rows ? alpha[t * stride + e] : 1.0f;
      g *= m->by[at];
      m->gk[at] = (before ? g : last) * m->k[at];
      m->gq[at] = g * m->q[at];
    }
    m->gain[e] = g;
  }
}

// kk and kq, 4 rows at once; `keys`: k, which is decayed to the last row on the way.
LW_INLINE void lw_chunk_decayed(const LwChunk* m, float* keys, bool before) {
  for (int64_t t0 = 0; t0 < m->rows; t0 += 4)
    for (int64_t i = 0; i < LW_CHUNK; i += VF_N) {
      vf kk[4], kq[4];
      vm earlier[4];
      for (int r = 0; r < 4; ++r) {
        kk[r] = kq[r] = vf_zero();
        earlier[r] = vi_gt(vi_set((int32_t)(t0 + r - i)), vi_iota());
      }
      for (int64_t e = 0; e < m->inner; ++e) {
        const int64_t at = e * LW_CHUNK + t0;
        vf key = vf_load(keys + e * LW_CHUNK + i);
        for (int r = 0; r < 4; ++r) {
          const vf less = vf_select(earlier[r], vf_mul(vf_set(m->by[at + r]), key), key);
          kk[r] = vf_fma(before ? less : key, vf_set(m->k[at + r]), kk[r]);
          kq[r] = vf_fma(less, vf_set(m->q[at + r]), kq[r]);
          key = less;
        }
        vf_store(keys + e * LW_CHUNK + i, key);
      }
      for (int r = 0; r < 4; ++r) {
        vf_store(m->kk + (t0 + r) * LW_CHUNK + i, kk[r]);
        vf_store(m->kq + (t0 + r) * LW_CHUNK + i, kq[r]);
      }
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

// The state after the chunk, of keys that are decayed.  n lanes of j, 8 channels at once.
LW_INLINE void lw_chunk_carried(const LwChunk* m, const float* keys, int64_t j, int64_t n) {
  for (int64_t e = 0; e < m->inner; e += 8) {
    const int64_t many = lw_least(m->inner - e, 8);
    vf s[8];
    for (int64_t r = 0; r < 8; ++r)
      s[r] = vf_mul(vf_set(m->gain[e + (r < many ? r : 0)]),
                    vf_load_n(m->s + (e + r) * m->width + j, r < many ? n : 0));
    for (int64_t i = 0; i < m->rows; ++i) {
      const float *c = m->c + i * m->width + j, *k = keys + e * LW_CHUNK + i;
      const vf lanes = n == VF_N ? vf_load(c) : vf_load_n(c, n);
      for (int64_t r = 0; r < 8; ++r)
        s[r] = vf_fma(lanes, vf_set(k[(r < many ? r : 0) * LW_CHUNK]), s[r]);
    }
    for (int64_t r = 0; r < many; ++r) vf_store_n(m->s + (e + r) * m->width + j, s[r], n);
  }
}
LW_INLINE void lw_chunk_carry(const LwChunk* m, const float* keys) {
  int64_t j = 0;
  for (; j + VF_N <= m->width; j += VF_N) lw_chunk_carried(m, keys, j, VF_N);
  if (j < m->width) lw_chunk_carried(m, keys, j, m->width - j);
}

// All that a chunk's rows need of the state and of each other, and the decayed keys.
LW_INLINE void lw_chunk_products(LwChunk* m, const float* alpha, int64_t stride,
                                         bool channels, bool before, float* keys) {
  if (channels) {
    for (int64_t i = 0; i < LW_CHUNK * m->inner; ++i) keys[i] = m->k[i];
    lw_chunk_gains(m, alpha, stride, before);
    lw_chunk_decayed(m, keys, before);
    lw_chunk_state(m, m->gk, m->u);
    lw_chunk_state(m, m->gq, m->o);
    return;
  }
  for (int64_t t = 0; t < m->rows; ++t) m->alpha[t] = alpha[t * stride];
  lw_chunk_decays(m);
  lw_chunk_dots(m, m->k, m->kk);
  lw_chunk_dots(m, m->q, m->kq);
  lw_chunk_state(m, m->k, m->u);
  lw_chunk_state(m, m->q, m->o);
  const float* decay = m->decay + (m->rows - 1) * LW_CHUNK;
  for (int64_t e = 0; e < m->inner; ++e)
    for (int64_t i = 0; i < m->rows; ++i)
      keys[e * LW_CHUNK + i] = m->k[e * LW_CHUNK + i] * decay[i];
}

LW_INLINE void lw_chunk_head(const LwCall* k, int64_t slot, int64_t h, int64_t at, int64_t count) {
  const int64_t heads = k->d[1], width = k->d[2], inner = k->d[3];
  const int64_t b = k->d[6] == 1 ? 1 : heads;
  const int64_t a = k->d[5] == 1 ? 1 : k->d[5] == 2 ? heads : heads * inner;  // between rows
  const int64_t first = k->d[5] == 1 ? 0 : k->d[5] == 2 ? h : h * inner;
  float* state = (float*)k->out[0] + (slot * heads + h) * width * inner;
  uint8_t* room = k->scratch;
  LwChunk m;
  float *keys, **columns[] = {&m.k, &m.q, &m.by, &m.gk, &m.gq, &keys};
  for (float** p : columns) *p = (float*)lw_take(&room, 4 * LW_CHUNK * inner);
  m.gain = (float*)lw_take(&room, 4 * inner);
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
    lw_chunk_products(&m, lw_floats(k, 4) + t0 * a + first, a, k->d[5] == 3, k->d[7] != 0, keys);
    lw_chunk_rows(&m, lw_floats(k, 3) + row * width, lw_floats(k, 5) + t0 * b + (b == 1 ? 0 : h),
                  heads * width, b, k->d[7] != 0, (float*)k->out[1] + row * width);
    lw_chunk_carry(&m, keys);
  }
  for (int64_t j = 0; j < width; ++j)
    for (int64_t e = 0; e < inner; ++e) state[j * inner + e] = m.s[e * width + j];
}

LW_INLINE void lw_call_linear_attention_chunked(const LwCall* k) {
  lw_delta_heads<lw_chunk_head>(k);
}

#endif  // LW_CALLS_CHUNK_H
