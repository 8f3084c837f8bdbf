#pragma once

#include <cstdint>

namespace lamina::fhbn {

// What a fork is told.
inline constexpr const char* kNotOurs =
    " belongs to the process that opened it, and this is a fork of that one";

// Changes when this process turns out to be a fork of the one that asked before. No system call.
std::uint32_t process_generation();

// The process that something was made in. A fork has a copy of it, and the same shared memory behind it, but
// must leave that alone.
class Owner {
public:
  bool is_here() const { return generation_ == process_generation(); }

private:
  std::uint32_t generation_ = process_generation();
};

}  // namespace lamina::fhbn
