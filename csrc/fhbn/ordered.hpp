#pragma once

#include <atomic>
#include <cstdint>

// Accesses to memory shared with a peer, named for what they order.
namespace lamina::fhbn {

static_assert(std::atomic_ref<std::uint64_t>::is_always_lock_free &&
                  std::atomic_ref<std::uint32_t>::is_always_lock_free,
              "a lock would be in this process's memory, where the peer does not see it");

// Acquires: the peer's writes before the value that is read are visible afterwards.
template <typename T>
T load_acquire(const T& shared) {
  return std::atomic_ref<T>(const_cast<T&>(shared)).load(std::memory_order_acquire);
}

// The peer that reads the value sees all that was written before.
template <typename T>
void store_release(T& shared, T value) {
  std::atomic_ref<T>(shared).store(value, std::memory_order_release);
}

// And it is in one order with all other such stores and loads: of a thread that stores A and then loads B,
// and a peer that stores B and then loads A, at least one sees the other's.
template <typename T>
void store_ordered(T& shared, T value) {
  std::atomic_ref<T>(shared).store(value, std::memory_order_seq_cst);
}

template <typename T>
T load_ordered(const T& shared) {
  return std::atomic_ref<T>(const_cast<T&>(shared)).load(std::memory_order_seq_cst);
}

}  // namespace lamina::fhbn
