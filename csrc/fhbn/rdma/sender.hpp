#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "fhbn/rdma/writer.hpp"
#include "fhbn/sender.hpp"

namespace lamina::fhbn::rdma {

// The writing end of a channel whose ring a NIC writes to. A message is put together in a mirror of that
// ring, in this process's memory; from there the NIC takes it, and there the peer's NIC writes how much was
// consumed. For one thread at a time.
class Sender {
public:
  // Of the mirror, what lies before its slots is the peer's to write to.
  static constexpr std::size_t kOfferedBytes = kSlotsOffset;

  Sender(std::shared_ptr<Segment> mirror, std::shared_ptr<Writer> writer, std::shared_ptr<const Peer> peer,
         Duration longest_spin);
  ~Sender();

  // As fhbn::Sender's, with a NicError when the NIC has failed. What it was given before may be lost then.
  bool send(Parts parts, const Patience& patience);
  bool is_ready() const { return mirror_.is_ready() && writer_->has_room(); }
  void close();

  std::uint64_t next_seqno() const { return mirror_.next_seqno(); }
  std::uint64_t consumed() const { return mirror_.consumed(); }
  const Segment& segment() const { return mirror_.segment(); }
  const Waiter& waiter() const { return mirror_.waiter(); }
  const Peer& peer() const { return mirror_.peer(); }

private:
  bool await_room(Clock::time_point end, const Patience& patience);
  void push(std::uint64_t seqno, Parts parts);
  void write_line();
  // Why there will be nothing more, if the NIC's failure was but a sign of that.
  void explain() const;

  fhbn::Sender mirror_;
  std::shared_ptr<Writer> writer_;
  Reminder reminder_;
  bool closed_ = false;
  Owner owner_;
};

}  // namespace lamina::fhbn::rdma
