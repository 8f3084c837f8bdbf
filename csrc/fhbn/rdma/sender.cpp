#include "fhbn/rdma/sender.hpp"

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "fhbn/errors.hpp"
#include "fhbn/ordered.hpp"

namespace lamina::fhbn::rdma {

Sender::Sender(std::shared_ptr<Segment> mirror, std::shared_ptr<Writer> writer,
               std::shared_ptr<const Peer> peer, Duration longest_spin)
    : mirror_(std::move(mirror), std::move(peer), longest_spin), writer_(std::move(writer)) {
  store_release(segment().ring().consumed.unheard, kUnheard);
}

Sender::~Sender() { close(); }

bool Sender::send(Parts parts, const Patience& patience) {
  const std::function<bool()> interrupted = [this, &patience] {
    writer_->check();
    if (writer_->has_room() && reminder_.is_due()) write_line();
    return patience.interrupted();
  };
  const std::uint64_t seqno = next_seqno();
  const auto end = Clock::now() + patience.timeout;
  try {
    if (owner_.is_here() && !closed_ && !await_room(end, patience)) return false;
    const Duration left = std::max(end - Clock::now(), Duration::zero());
    if (!mirror_.send(parts, {left, interrupted})) return false;
    push(seqno, parts);
  } catch (const NicError&) {
    explain();
    throw;
  }
  return true;
}

// For the NIC, as long as the caller would wait for a slot. False if that was interrupted.
bool Sender::await_room(Clock::time_point end, const Patience& patience) {
  writer_->check();
  while (!writer_->has_room()) {
    if (patience.interrupted && patience.interrupted()) return false;
    if (Clock::now() >= end) {
      throw DeadlinePassed("the NIC has not taken in time what was sent to " + peer().name() + " before");
    }
    std::this_thread::yield();
    writer_->check();
  }
  return true;
}

// The message and then its number, behind one doorbell.
void Sender::push(std::uint64_t seqno, Parts parts) {
  std::uint64_t bytes = sizeof(SlotHeader);
  for (const auto part : parts) bytes += rounded_up(part.size(), kPartAlignment);
  const std::uint64_t offset = offset_in(segment(), &segment().slot(seqno));
  writer_->write(offset, offset, bytes);
  write_line();
}

void Sender::write_line() {
  writer_->write_line(offsetof(Ring, published), {next_seqno(), State::kOpen, kUnheard});
  writer_->ring();
}

void Sender::explain() const {
  if (load_acquire(segment().ring().consumed.state) != State::kOpen) {
    throw ChannelClosed(peer().name() + " has closed the channel and takes no more messages");
  }
  if (peer().has_ended()) {
    throw PeerLost(peer().name() + " has ended with " + std::to_string(next_seqno() - consumed()) +
                   " messages not consumed");
  }
}

void Sender::close() {
  if (!owner_.is_here() || std::exchange(closed_, true)) return;
  mirror_.close();
  if (load_acquire(segment().ring().consumed.state) != State::kOpen || peer().has_ended()) return;
  write_goodbye(*writer_, offsetof(Ring, published), next_seqno());
}

}  // namespace lamina::fhbn::rdma
