#pragma once

#include <nanobind/nanobind.h>

namespace lamina {

void bind_attention(nanobind::module_& m);
void bind_fhbn(nanobind::module_& m);
void bind_fhbn_errors(nanobind::module_& m);
void bind_fhbn_rdma(nanobind::module_& m);
void bind_h2m2(nanobind::module_& m);
void bind_h2m2_memory(nanobind::module_& m);
void bind_h2m2_replay(nanobind::module_& m);
void bind_operators(nanobind::module_& m);
void bind_router(nanobind::module_& m);
void bind_scheduler(nanobind::module_& m);
void bind_slab(nanobind::module_& m);

}  // namespace lamina
