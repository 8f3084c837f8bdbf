#pragma once

#include "fhbn/cuda/ring.h"
#include "fhbn/process.hpp"
#include "fhbn/segment.hpp"

namespace lamina::fhbn::rdma {

// A ring in a GPU's memory, as the CUDA library has made it. Kernels and NICs reach it; for the host's code
// there is no way to it here, and its address is a number.
class DeviceRing final : public RingMemory {
public:
  DeviceRing(const Geometry& geometry, const lamina_cuda_ring& made)
      : RingMemory(made.file, made.memory, made.bytes, geometry, true), made_(made) {}
  ~DeviceRing() override {
    if (owner_.is_here()) made_.destroy(made_.allocated);
  }

private:
  lamina_cuda_ring made_;
  Owner owner_;
};

}  // namespace lamina::fhbn::rdma
