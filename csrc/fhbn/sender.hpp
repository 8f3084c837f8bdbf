#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "fhbn/process.hpp"
#include "fhbn/segment.hpp"
#include "fhbn/wait.hpp"

namespace lamina::fhbn {

// Into shared memory, at a multiple of kPartAlignment. What is written is ordered before a later
// store_release or store_ordered, as any write is.
void copy(std::byte* to, std::span<const std::byte> from);

using Parts = std::span<const std::span<const std::byte>>;

// How long an end waits, and the callback that may interrupt it.
struct Patience {
  Duration timeout;
  const std::function<bool()>& interrupted;

  // For a caller that does not expect to wait at all.
  Patience none() const { return {Duration::zero(), interrupted}; }
};

// The writing end of a channel in shared memory. For one thread at a time.
class Sender {
public:
  Sender(std::shared_ptr<Segment> segment, std::shared_ptr<const Peer> peer, Duration longest_spin);
  ~Sender();

  // Copies the parts into the receiver's ring as one message, when there is a free slot; then the message is
  // there, whole. False if `patience` interrupted the wait; nothing has been sent then.
  // std::length_error if a message cannot hold them.
  bool send(Parts parts, const Patience& patience);

  // Whether send() would not wait for a slot. It may still throw.
  bool is_ready() const;

  // Says that there will be nothing more. The receiver still receives what was sent.
  void close();

  std::uint64_t next_seqno() const { return next_; }
  // The first one that the receiver has not given back: all before it were received.
  std::uint64_t consumed() const;
  const Segment& segment() const { return *segment_; }
  const Waiter& waiter() const { return waiter_; }
  const Peer& peer() const { return *peer_; }

private:
  bool wait_for_slot(const Patience& patience);
  bool take_credits();

  std::shared_ptr<Segment> segment_;
  std::shared_ptr<const Peer> peer_;
  Waiter waiter_;
  std::uint64_t next_;
  std::uint64_t consumed_;  // as last looked at
  bool closed_ = false;
  Owner owner_;
};

}  // namespace lamina::fhbn
