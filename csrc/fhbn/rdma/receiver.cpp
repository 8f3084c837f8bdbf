#include "fhbn/rdma/receiver.hpp"

#include <utility>

#include "fhbn/errors.hpp"
#include "fhbn/ordered.hpp"

namespace lamina::fhbn::rdma {

Receiver::Receiver(std::shared_ptr<Segment> segment, std::shared_ptr<Writer> writer,
                   std::shared_ptr<const Peer> peer, Duration longest_spin)
    : ring_(std::move(segment), std::move(peer), longest_spin),
      writer_(std::move(writer)),
      notified_(ring_.consumed()) {
  store_release(ring_.segment().ring().published.unheard, kUnheard);
}

Receiver::~Receiver() { close(); }

// A wait that ends when the NIC fails, unless there is something to take. What has arrived was written
// before.
template <typename Wait>
auto Receiver::watching(const Patience& patience, Wait wait) {
  if (is_ready() || !owner_.is_here()) return wait(patience);
  const std::function<bool()> interrupted = [this, &patience] {
    check();
    return patience.interrupted();
  };
  try {
    check();
    return wait({patience.timeout, interrupted});
  } catch (const NicError&) {
    if (is_ready()) return wait(patience.none());
    if (peer().has_ended()) throw PeerLost(peer().name() + " has ended and all its messages were received");
    throw;
  }
}

std::optional<Arrived> Receiver::receive(const Patience& patience) {
  return watching(patience, [this](const Patience& watched) { return ring_.receive(watched); });
}

Woken Receiver::await(const Patience& patience) {
  return watching(patience, [this](const Patience& watched) { return ring_.await(watched); });
}

void Receiver::check() {
  const std::lock_guard lock(posting_);
  if (state_ != State::kOpen) return;
  writer_->check();
  if (writer_->has_room() && reminder_.is_due()) write_line();
}

void Receiver::give_back(std::uint64_t seqno) {
  if (!owner_.is_here()) return;
  ring_.give_back(seqno);
  const std::lock_guard lock(posting_);
  if (std::exchange(notified_, consumed()) == consumed()) return;
  try {
    write_line();
  } catch (const NicError&) {
    // The next call throws again.
  }
}

void Receiver::write_line() {
  writer_->write_line(offsetof(Ring, consumed), {notified_, state_, kUnheard});
  writer_->ring();
}

void Receiver::close() {
  if (!owner_.is_here()) return;
  const std::lock_guard lock(posting_);
  if (std::exchange(state_, State::kClosed) == State::kClosed) return;
  ring_.close();
  if (load_acquire(segment().ring().published.state) != State::kOpen || peer().has_ended()) return;
  write_goodbye(*writer_, offsetof(Ring, consumed), notified_);
}

}  // namespace lamina::fhbn::rdma
