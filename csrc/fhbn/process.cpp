#include "fhbn/process.hpp"

#include <pthread.h>

#include <atomic>

namespace lamina::fhbn {

namespace {

std::atomic<std::uint32_t> generation = 0;

}  // namespace

std::uint32_t process_generation() {
  static const int watching =
      ::pthread_atfork(nullptr, nullptr, [] { generation.fetch_add(1, std::memory_order_relaxed); });
  static_cast<void>(watching);
  return generation.load(std::memory_order_relaxed);
}

}  // namespace lamina::fhbn
