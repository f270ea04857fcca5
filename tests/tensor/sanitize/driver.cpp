// Runs the emitted program of a step on threads of its own, under a sanitizer of the compiler.
//
//     driver INPUT OUTPUT
//
// INPUT is little-endian i64s: buffers, scalars, arena bytes, private bytes, scratch bytes,
// threads, steps; then the u32 scalars; then every buffer as its size and its bytes; then every
// step as a count of updates, each an index, a size and bytes.  OUTPUT gets all buffers after each
// step.  Each buffer is an allocation of its own of exactly its size.  Every other step is posted
// to a submitter, and waited for.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "program.h"

extern "C" void lw_form_main(LwContext*, int32_t, int32_t);

namespace {

struct Worker {
  void* pool;
  int32_t t;
  pthread_t thread;
};

void* work(void* given) {
  Worker* w = (Worker*)given;
  lw_pool_worker(w->pool, w->t);
  return nullptr;
}

void* submit(void* submitter) {
  lw_submit_worker(submitter);
  return nullptr;
}

void step(void* c, int32_t t, int32_t T) { lw_form_main((LwContext*)c, t, T); }

void take(FILE* in, void* to, size_t bytes) {
  if (fread(to, 1, bytes, in) != bytes) exit(2);
}

int64_t number(FILE* in) {
  int64_t x;
  take(in, &x, sizeof x);
  return x;
}

// Of exactly this size; poisoned, so that what a step reads of it shows in its results.
uint8_t* room(int64_t bytes) {
  void* p = nullptr;
  if (posix_memalign(&p, 64, bytes > 0 ? (size_t)bytes : 1) != 0) exit(3);
  memset(p, 0xa5, (size_t)bytes);
  return (uint8_t*)p;
}

int64_t lines(int64_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

int main(int argc, char** argv) {
  FILE* in = argc == 3 ? fopen(argv[1], "rb") : nullptr;
  FILE* out = in ? fopen(argv[2], "wb") : nullptr;
  if (!out) return 1;
  int64_t head[7];
  take(in, head, sizeof head);
  const int64_t count = head[0], scalar_count = head[1], threads = head[5];
  const int64_t priv = lines(head[3]), scratch = lines(head[4]);
  uint32_t* scalars = (uint32_t*)room(scalar_count * 4);
  take(in, scalars, scalar_count * 4);
  uint8_t** buffers = (uint8_t**)room(count * 8);
  int64_t* sizes = (int64_t*)room(count * 8);
  for (int64_t i = 0; i < count; ++i) {
    sizes[i] = number(in);
    take(in, buffers[i] = room(sizes[i]), sizes[i]);
  }
  LwPool* pool = (LwPool*)room(lw_pool_bytes());
  lw_pool_init(pool, (int32_t)threads);
  Worker* workers = (Worker*)room(threads * sizeof(Worker));
  for (int32_t t = 1; t < threads; ++t) {
    workers[t].pool = pool;
    workers[t].t = t;
    if (pthread_create(&workers[t].thread, nullptr, work, workers + t) != 0) return 3;
  }
  void* submitter = room(lw_submit_bytes());
  lw_submit_init(submitter, pool);
  pthread_t poster;
  if (pthread_create(&poster, nullptr, submit, submitter) != 0) return 3;
  LwContext c = {room(head[2]), room(priv * threads), priv, room(scratch * threads), scratch,
                 buffers, scalars, pool};
  for (int64_t s = 0; s < head[6]; ++s) {
    for (int64_t updates = number(in); updates > 0; --updates) {
      const int64_t i = number(in), bytes = number(in);
      if (i < 0 || i >= count || bytes > sizes[i]) return 2;
      take(in, buffers[i], bytes);
    }
    if (s % 2) {
      lw_submit_post(submitter, step, &c, (int32_t)threads);
      while (!lw_submit_wait(submitter, (uint32_t)(s / 2 + 1), 10000000)) continue;
    } else {
      lw_pool_run(pool, step, &c, (int32_t)threads);
    }
    for (int64_t i = 0; i < count; ++i)
      if (fwrite(buffers[i], 1, sizes[i], out) != (size_t)sizes[i]) return 4;
  }
  lw_submit_leave(submitter);
  pthread_join(poster, nullptr);
  if (!lw_pool_stop(pool)) return 5;
  for (int32_t t = 1; t < threads; ++t) pthread_join(workers[t].thread, nullptr);
  for (int64_t i = 0; i < count; ++i) free(buffers[i]);
  void* rest[] = {scalars, buffers, sizes, pool, submitter, workers, c.arena, c.priv, c.scratch};
  for (void* p : rest) free(p);
  fclose(in);
  return fclose(out) == 0 ? 0 : 4;
}
