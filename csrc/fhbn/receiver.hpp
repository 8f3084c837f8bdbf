#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "fhbn/sender.hpp"

namespace lamina::fhbn {

// A message where it lies in the ring. It stays until its seqno is given back to the receiver.
struct Arrived {
  std::uint64_t seqno = 0;
  std::uint32_t count = 0;
  std::array<std::span<std::byte>, kMostParts> parts;
};

// The reading end of a channel in shared memory, and the owner of that. For one thread at a time, except that
// another one may give back while one receives.
class Receiver {
public:
  Receiver(std::shared_ptr<Segment> segment, std::shared_ptr<const Peer> peer, Duration longest_spin);
  ~Receiver();

  // The next message, in the order in which they were sent; nothing if `patience` interrupted the wait.
  std::optional<Arrived> receive(const Patience& patience);

  // Waits for a message, which is there if this gives kReady, or for `patience` to be over. Throws if none
  // can come.
  Woken await(const Patience& patience);

  // Whether a message is there.
  bool has_message() const;

  // Whether receive() would not wait for a message. It may still throw.
  bool is_ready() const;

  // The sender may write there again, once all before are given back too. Messages may be given back in any
  // order, each once.
  void give_back(std::uint64_t seqno);

  // Says that nothing more will be received.
  void close();

  std::uint64_t next_seqno() const { return next_; }
  std::uint64_t consumed() const { return consumed_; }
  const Segment& segment() const { return *segment_; }
  const Waiter& waiter() const { return waiter_; }
  const Peer& peer() const { return *peer_; }

private:
  Woken wait_for_message(const Patience& patience);
  Arrived checked(std::uint64_t seqno) const;
  [[noreturn]] void corrupted(const char* how) const;

  std::shared_ptr<Segment> segment_;
  std::shared_ptr<const Peer> peer_;
  Waiter waiter_;
  // Both are read by a releasing thread concurrently with a receiving one.
  std::atomic<std::uint64_t> next_;
  std::atomic<std::uint64_t> consumed_;
  std::vector<bool> given_back_;  // by slot, of messages after consumed_
  bool closed_ = false;
  Owner owner_;
};

}  // namespace lamina::fhbn
