#include <nanobind/nanobind.h>

#include "python/bindings.hpp"

// The engine's native half. Each part binds itself in its own file; none of them holds logic.
NB_MODULE(_native, m) {
  lamina::bind_scheduler(m);
  lamina::bind_router(m);
  lamina::bind_slab(m);  // first: attention takes a Slab
  lamina::bind_attention(m);
  lamina::bind_operators(m);
  lamina::bind_fhbn_errors(m);
  lamina::bind_fhbn(m);
  lamina::bind_fhbn_rdma(m);  // of its segments
}
