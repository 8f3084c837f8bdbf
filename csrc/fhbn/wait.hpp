#pragma once

#include <poll.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "fhbn/wire.hpp"

namespace lamina::fhbn {

// The process at the other end, as far as waiting for it goes.
class Peer {
public:
  // `watched`: what shows its end, each by itself: a pidfd of its process, sockets that it holds. Copies
  // of them are kept open by this object.
  Peer(std::string name, std::span<const int> watched);
  explicit Peer(std::string name, std::initializer_list<int> watched = {})
      : Peer(std::move(name), std::span<const int>(watched.begin(), watched.size())) {}
  ~Peer();
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  const std::string& name() const { return name_; }
  // A system call: not for the fast path.
  bool has_ended() const noexcept;

private:
  std::string name_;
  std::vector<pollfd> watched_;
};

using Clock = std::chrono::steady_clock;
using Duration = Clock::duration;

enum class Woken {
  kReady,
  kLate,         // the deadline passed
  kAlone,        // the peer has ended, and nothing of it was left
  kInterrupted,  // `interrupted` returned true
};

// Waits for a peer's line to change: looks at it again and again for as long as such waits have lately paid,
// then sleeps in the kernel until the peer, or the clock, or the peer's end wakes it.
class Waiter {
public:
  // `longest_spin`: the most that is spent on looking; 0 on a machine with fewer cores than waiters.
  explicit Waiter(Duration longest_spin) : longest_spin_(longest_spin), spin_(longest_spin) {}

  // Looks at `line` until its seqno differs from `observed` or it is closed. `asleep` is where the peer looks
  // before it wakes. `interrupted` is called regularly; it may throw.
  Woken wait(const Side& line, std::uint64_t observed, Asleep& asleep, const Peer& peer, Duration timeout,
             const std::function<bool()>& interrupted);

  // Counts of waits that were not ready at once.
  std::uint64_t spun() const { return spun_; }    // ended while looking
  std::uint64_t slept() const { return slept_; }  // slept in the kernel

private:
  void learn(Duration waited);

  Duration longest_spin_;
  Duration spin_;
  Duration usual_{};  // how long waits last, of late
  std::uint64_t spun_ = 0;
  std::uint64_t slept_ = 0;
};

// After a line has been written by store_ordered: wakes the peer if it sleeps until then.
void wake(Asleep& peer);

}  // namespace lamina::fhbn
