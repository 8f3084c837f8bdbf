#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "fhbn/segment.hpp"
#include "fhbn/wait.hpp"

// What the two ends of a channel over a NIC have in common.
namespace lamina::fhbn::rdma {

// A NIC writes a line and wakes no thread: a waiter has to look.
inline constexpr std::uint32_t kUnheard = 1;
// How long a closed end waits until its peer's NIC has been told.
inline constexpr Duration kGoodbye = std::chrono::seconds(1);

// A NIC tells only of what it was asked to do, and of a queue pair that has failed, here or at the peer, no
// more than that. So a waiter asks for something now and then: that its line be written once more. Not where
// that would have to wait for room: then the NIC has enough to tell of.
class Reminder {
public:
  // True once in a while.
  bool is_due() {
    const auto now = Clock::now();
    if (now < next_) return false;
    next_ = now + kEvery;
    return true;
  }

private:
  static constexpr Duration kEvery = std::chrono::seconds(1);
  Clock::time_point next_ = Clock::now() + kEvery;
};

inline std::uint64_t offset_in(const Segment& segment, const void* place) {
  return static_cast<std::uint64_t>(static_cast<const std::byte*>(place) -
                                    static_cast<const std::byte*>(segment.memory()));
}

}  // namespace lamina::fhbn::rdma
