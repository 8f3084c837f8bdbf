#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "fhbn/rdma/writer.hpp"
#include "fhbn/receiver.hpp"

namespace lamina::fhbn::rdma {

// The reading end of a channel whose ring a NIC writes to, and the owner of that. It looks at its own memory
// only, and writes how much it has consumed into the sender's. For one thread at a time, except that another
// one may give back while one receives.
class Receiver {
public:
  Receiver(std::shared_ptr<Segment> segment, std::shared_ptr<Writer> writer, std::shared_ptr<const Peer> peer,
           Duration longest_spin);
  ~Receiver();

  // As fhbn::Receiver's, with a NicError when the NIC has failed and nothing is left that came before.
  std::optional<Arrived> receive(const Patience& patience);
  Woken await(const Patience& patience);
  bool has_message() const { return ring_.has_message(); }
  bool is_ready() const { return ring_.is_ready(); }
  // The next call that waits reports a failure of the NIC.
  void give_back(std::uint64_t seqno);
  void close();

  std::uint64_t next_seqno() const { return ring_.next_seqno(); }
  std::uint64_t consumed() const { return ring_.consumed(); }
  const Segment& segment() const { return ring_.segment(); }
  const Waiter& waiter() const { return ring_.waiter(); }
  const Peer& peer() const { return ring_.peer(); }

private:
  template <typename Wait>
  auto watching(const Patience& patience, Wait wait);
  void check();
  void write_line();

  fhbn::Receiver ring_;
  std::mutex posting_;  // the writer, and what follows
  std::shared_ptr<Writer> writer_;
  std::uint64_t notified_;  // how much the sender knows to be consumed
  State state_ = State::kOpen;
  Reminder reminder_;
  Owner owner_;
};

}  // namespace lamina::fhbn::rdma
