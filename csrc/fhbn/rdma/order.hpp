#pragma once

#include <cstdint>

#include "fhbn/ordered.hpp"

namespace lamina::fhbn::rdma {

// How a thread of the host reaches a queue (queue.hpp) and its registers.
struct HostOrder {
  static void store_release(std::uint32_t* word, std::uint32_t value) { fhbn::store_release(*word, value); }
  static std::uint8_t load_acquire(const std::uint8_t* byte) { return fhbn::load_acquire(*byte); }

  static void store_register(std::uint64_t* word, std::uint64_t value) { fhbn::store_release(*word, value); }

  // The UAR page is mapped so that the processor gathers neighbouring words (write combining), which lets
  // them be late and overtake what was written to memory.
  static void fence_registers() {
#if defined(__x86_64__)
    __builtin_ia32_sfence();
#else
    __sync_synchronize();
#endif
  }
};

}  // namespace lamina::fhbn::rdma
