#include "fhbn/receiver.hpp"

#include <cassert>
#include <cstring>
#include <string>
#include <utility>

#include "fhbn/errors.hpp"
#include "fhbn/ordered.hpp"

namespace lamina::fhbn {

Receiver::Receiver(std::shared_ptr<Segment> segment, std::shared_ptr<const Peer> peer, Duration longest_spin)
    : segment_(std::move(segment)),
      peer_(std::move(peer)),
      waiter_(longest_spin),
      next_(segment_->geometry().first_seqno),
      consumed_(segment_->geometry().first_seqno),
      given_back_(segment_->geometry().slots) {}

Receiver::~Receiver() { close(); }

std::optional<Arrived> Receiver::receive(const Patience& patience) {
  switch (await(patience)) {
    case Woken::kLate:
      throw DeadlinePassed("nothing came from " + peer_->name() + " in time");
    case Woken::kInterrupted:
      return std::nullopt;
    default:
      break;
  }
  const std::uint64_t next = next_;
  const Arrived message = checked(next);
  next_.store(next + 1, std::memory_order_relaxed);  // only this thread writes it
  return message;
}

Woken Receiver::await(const Patience& patience) {
  if (!owner_.is_here()) throw ChannelError("the channel from " + peer_->name() + kNotOurs);
  if (closed_) throw ChannelClosed("the channel from " + peer_->name() + " was closed at this end");
  return has_message() ? Woken::kReady : wait_for_message(patience);
}

bool Receiver::has_message() const { return load_acquire(segment_->ring().published.seqno) != next_; }

bool Receiver::is_ready() const {
  const Side& line = segment_->ring().published;
  return load_acquire(line.seqno) != next_ || load_acquire(line.state) != State::kOpen;
}

Woken Receiver::wait_for_message(const Patience& patience) {
  Ring& ring = segment_->ring();
  // The sender would wait for us as we for it.
  if (next_ - consumed_ >= segment_->geometry().slots) {
    throw ChannelError("all " + std::to_string(segment_->geometry().slots) + " slots of the channel from " +
                       peer_->name() + " hold messages that were not released");
  }
  const Woken woken =
      waiter_.wait(ring.published, next_, ring.receiver, *peer_, patience.timeout, patience.interrupted);
  if (woken == Woken::kAlone) throw PeerLost(peer_->name() + " has ended and all its messages were received");
  if (woken != Woken::kReady) return woken;
  // The state first: the check after it sees everything published before closing.
  const bool closed = load_acquire(ring.published.state) != State::kOpen;
  if (has_message()) return Woken::kReady;
  if (closed)
    throw ChannelClosed(peer_->name() + " has closed the channel and all its messages were received");
  // To wait again would give it a way to keep us beyond the deadline.
  corrupted("has taken back that it published something or closed");
}

// The peer's memory is read once, into a copy; that is checked, and nothing else is used.
Arrived Receiver::checked(std::uint64_t seqno) const {
  const Geometry& geometry = segment_->geometry();
  const std::uint64_t published = load_acquire(segment_->ring().published.seqno);
  const std::uint64_t consumed = consumed_;
  if (published - consumed > geometry.slots) corrupted("claims to have sent more than the ring holds");
  // Otherwise the slot could hold another message that was not released.
  if (published - consumed <= seqno - consumed) corrupted("has taken back messages that it had published");
  SlotHeader header;
  SlotHeader& slot = segment_->slot(seqno);
  std::memcpy(&header, &slot, sizeof header);
  std::atomic_signal_fence(std::memory_order_seq_cst);  // else a compiler may read a field once more
  if (header.seqno != seqno) corrupted("has put another message where the next one belongs");
  if (header.epoch != geometry.epoch) corrupted("has sent a message of another epoch");
  if (header.parts > kMostParts) corrupted("has sent a message of impossibly many parts");

  Arrived message;
  message.seqno = seqno;
  message.count = header.parts;
  auto* at = reinterpret_cast<std::byte*>(&slot + 1);
  std::uint64_t left = geometry.message_bytes;
  for (std::uint32_t i = 0; i < header.parts; ++i) {
    const std::uint64_t bytes = header.bytes[i];
    if (bytes > left) corrupted("has sent a message larger than the channel's messages");
    message.parts[i] = {at, static_cast<std::size_t>(bytes)};
    at += rounded_up(bytes, kPartAlignment);
    left -= bytes;
  }
  return message;
}

void Receiver::corrupted(const char* how) const { throw Corrupted(peer_->name() + " " + how); }

void Receiver::give_back(std::uint64_t seqno) {
  if (!owner_.is_here()) return;
  const std::uint32_t mask = segment_->geometry().slots - 1;
  assert(seqno - consumed_ < next_ - consumed_ && !given_back_[seqno & mask]);
  given_back_[seqno & mask] = true;
  std::uint64_t consumed = consumed_;
  if (seqno != consumed) return;
  while (given_back_[consumed & mask]) given_back_[consumed++ & mask] = false;
  consumed_ = consumed;
  Ring& ring = segment_->ring();
  store_ordered(ring.consumed.seqno, consumed);
  wake(ring.sender);
}

void Receiver::close() {
  if (!owner_.is_here() || std::exchange(closed_, true)) return;
  Ring& ring = segment_->ring();
  store_ordered(ring.consumed.state, State::kClosed);
  wake(ring.sender);
}

}  // namespace lamina::fhbn
