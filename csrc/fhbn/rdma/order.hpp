#pragma once

#include <atomic>
#include <cstdint>

#include "fhbn/ordered.hpp"

namespace lamina::fhbn::rdma {

// How a thread of the host reaches a queue (queue.hpp) and its registers. On ARM64 the orders among threads
// end at the processors: what a device is to see too takes barriers of the outer domain.
struct HostOrder {
  static void store_release(std::uint32_t* word, std::uint32_t value) {
#if defined(__aarch64__)
    asm volatile("dmb oshst" ::: "memory");
#endif
    fhbn::store_release(*word, value);
  }

  static std::uint8_t load_acquire(const std::uint8_t* byte) {
    const std::uint8_t value = fhbn::load_acquire(*byte);
#if defined(__aarch64__)
    asm volatile("dmb oshld" ::: "memory");
#endif
    return value;
  }

  // Neighbouring words are to leave the processor as one: an order among them would keep them apart.
  static void store_register(std::uint64_t* word, std::uint64_t value) {
    std::atomic_ref<std::uint64_t>(*word).store(value, std::memory_order_relaxed);
  }

  // The UAR page is mapped so that the processor gathers neighbouring words (write combining), which lets
  // them be late and overtake what was written to memory.
  static void fence_registers() {
#if defined(__x86_64__)
    __builtin_ia32_sfence();
#elif defined(__aarch64__)
    asm volatile("dsb st" ::: "memory");
#else
    __sync_synchronize();  // enough for a softnic; what a NIC would need was not examined
#endif
  }
};

}  // namespace lamina::fhbn::rdma
