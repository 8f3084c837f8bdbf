#pragma once

// What the channel's kernels ask of memory shared with a peer, on the host, where that peer is a thread or
// `meanwhile`. Loads and stores are real ones, so what a thread of the host sees of them is too.

#include <atomic>
#include <thread>

#include "cuda_emulation.hpp"

namespace lamina::cuda::emulated {

// What the rest of the world does when a kernel looks at shared memory, and when it has published something.
// Without it, others get the processor. All of this is each thread's own, of its kernels alone.
inline thread_local std::function<void()> meanwhile;
inline thread_local std::function<void()> published;
inline thread_local std::uint64_t looks = 0;
inline thread_local std::uint64_t acquires = 0;  // among them
// Moves by a microsecond whenever a kernel of this thread asks: how long a wait is does not depend on how
// many others wait. It wraps around early.
inline thread_local std::uint64_t clock_ns = 0 - std::uint64_t{100'000};

template <typename T>
T look(const T* shared, std::memory_order order = std::memory_order_acquire) {
  ++looks;
  if (order == std::memory_order_acquire) ++acquires;
  if (meanwhile) {
    meanwhile();
  } else {
    std::this_thread::yield();
  }
  return std::atomic_ref<T>(*const_cast<T*>(shared)).load(order);
}

template <typename T>
void publish(T* shared, T value) {
  std::atomic_ref<T>(*shared).store(value, std::memory_order_release);
  if (published) published();
}

}  // namespace lamina::cuda::emulated

namespace lamina::fhbn::cuda {

namespace emulated = lamina::cuda::emulated;

inline std::uint64_t load_acquire_sys(const std::uint64_t* shared) { return emulated::look(shared); }
inline std::uint32_t load_acquire_sys(const std::uint32_t* shared) { return emulated::look(shared); }
inline std::uint64_t look_sys(const std::uint64_t* shared) {
  return emulated::look(shared, std::memory_order_relaxed);
}
inline std::uint64_t load_relaxed_sys(const std::uint64_t* shared) {
  return std::atomic_ref<std::uint64_t>(*const_cast<std::uint64_t*>(shared)).load(std::memory_order_relaxed);
}
inline void store_release_sys(std::uint64_t* shared, std::uint64_t value) {
  emulated::publish(shared, value);
}
inline void store_release_sys(std::uint32_t* shared, std::uint32_t value) {
  emulated::publish(shared, value);
}
inline std::int32_t count_acq_rel_sys(std::int32_t* counter) {
  return std::atomic_ref<std::int32_t>(*counter).fetch_add(1, std::memory_order_acq_rel);
}
inline void fence_sys() {}  // what is stored behind it is released
// In the device's own memory nobody else has a part, and looking there is no trip over the bus.
inline std::uint32_t load_acquire_gpu(const std::uint32_t* own) {
  return std::atomic_ref<std::uint32_t>(*const_cast<std::uint32_t*>(own)).load(std::memory_order_acquire);
}
inline std::uint32_t look_gpu(const std::uint32_t* own) {
  return std::atomic_ref<std::uint32_t>(*const_cast<std::uint32_t*>(own)).load(std::memory_order_relaxed);
}
inline void store_release_gpu(std::uint32_t* own, std::uint32_t value) {
  std::atomic_ref<std::uint32_t>(*own).store(value, std::memory_order_release);
}
inline std::int32_t count_relaxed_gpu(std::int32_t* counter) {
  return std::atomic_ref<std::int32_t>(*counter).fetch_add(1, std::memory_order_relaxed);
}
inline Chunk load_once(const Chunk* global) { return *global; }
inline void store_once(Chunk* global, const Chunk& chunk) { *global = chunk; }
// What looks on meanwhile, a softnic, may find any of the warp's words there and others not yet.
inline void store_together(Chunk* global, const Chunk& chunk) {
  std::uint64_t words[2];
  std::memcpy(words, &chunk, sizeof words);
  auto* const to = reinterpret_cast<std::uint64_t*>(global);
  for (int i = 0; i < 2; ++i) {
    std::atomic_ref<std::uint64_t>(to[i]).store(words[i], std::memory_order_release);
  }
}
inline std::uint64_t global_timer() { return emulated::clock_ns += 1000; }

}  // namespace lamina::fhbn::cuda
