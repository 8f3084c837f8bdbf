#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>

namespace lamina::fhbn {

// The error message in a forked process.
inline constexpr const char* kNotOurs =
    " belongs to the process that opened it, and this is a fork of that one";

// Changes when this process is a fork of the one that called before. No system call.
inline std::uint32_t process_generation() {
  static std::atomic<std::uint32_t> generation = 0;
  static const int watching =
      ::pthread_atfork(nullptr, nullptr, [] { generation.fetch_add(1, std::memory_order_relaxed); });
  static_cast<void>(watching);
  return generation.load(std::memory_order_relaxed);
}

// The process that something was made in. A fork has a copy of it, and the same shared memory behind it, but
// must leave that alone.
class Owner {
public:
  bool is_here() const { return generation_ == process_generation(); }

private:
  std::uint32_t generation_ = process_generation();
};

}  // namespace lamina::fhbn
