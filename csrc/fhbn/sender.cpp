#include "fhbn/sender.hpp"

#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "fhbn/errors.hpp"
#include "fhbn/ordered.hpp"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace lamina::fhbn {

#if defined(__SSE2__)
namespace {

// From here on a message, its copy and the other slots push each other out of a last-level cache of tens of
// megabytes. Going past it saves reading what is overwritten: 33 to 40 GB/s instead of 22 to 25 at 8 MiB on
// an EPYC with 32 MiB, while at 1 MiB it would cost a third.
constexpr std::size_t kPastCache = 4 << 20;

void copy_past_cache(std::byte* to, const std::byte* from, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += kPartAlignment) {
    const auto* source = reinterpret_cast<const __m128i*>(from + at);
    auto* target = reinterpret_cast<__m128i*>(to + at);
    const __m128i a = _mm_loadu_si128(source);
    const __m128i b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2);
    const __m128i d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  _mm_sfence();  // these stores are ordered by nothing else
}

}  // namespace
#endif

void copy(std::byte* to, std::span<const std::byte> from) {
  if (from.empty()) return;
#if defined(__SSE2__)
  if (from.size() >= kPastCache) {
    const std::size_t whole = from.size() / kPartAlignment * kPartAlignment;
    copy_past_cache(to, from.data(), whole);
    to += whole;
    from = from.subspan(whole);
  }
#endif
  std::memcpy(to, from.data(), from.size());
}

namespace {

// Of all the parts together; more than any message has if they are too many.
std::uint64_t message_bytes_of(Parts parts) {
  std::uint64_t total = 0;
  for (const auto part : parts) {
    if (part.size() > kMostMessageBytes || total > kMostMessageBytes) return kMostMessageBytes + 1;
    total += part.size();
  }
  return total;
}

}  // namespace

Sender::Sender(std::shared_ptr<Segment> segment, std::shared_ptr<const Peer> peer, Duration longest_spin)
    : segment_(std::move(segment)),
      peer_(std::move(peer)),
      waiter_(longest_spin),
      next_(segment_->geometry().first_seqno),
      consumed_(next_) {}

Sender::~Sender() { close(); }

bool Sender::send(Parts parts, const Patience& patience) {
  const Geometry& geometry = segment_->geometry();
  if (!owner_.is_here()) throw ChannelError("the channel to " + peer_->name() + kNotOurs);
  if (closed_) throw ChannelClosed("the channel to " + peer_->name() + " was closed at this end");
  if (parts.size() > kMostParts) {
    throw std::length_error("a message has up to " + std::to_string(kMostParts) + " parts, not " +
                            std::to_string(parts.size()));
  }
  const std::uint64_t total = message_bytes_of(parts);
  if (total > geometry.message_bytes) {
    throw std::length_error("the parts have " + std::to_string(total) + " bytes together and a message to " +
                            peer_->name() + " holds " + std::to_string(geometry.message_bytes) +
                            ": open the channel with larger messages");
  }
  if (next_ - consumed_ >= geometry.slots && !wait_for_slot(patience)) return false;

  SlotHeader& slot = segment_->slot(next_);
  auto* to = reinterpret_cast<std::byte*>(&slot + 1);
  slot.seqno = next_;
  slot.epoch = geometry.epoch;
  slot.parts = static_cast<std::uint32_t>(parts.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    slot.bytes[i] = parts[i].size();
    copy(to, parts[i]);
    to += rounded_up(parts[i].size(), kPartAlignment);
  }
  Ring& ring = segment_->ring();
  store_ordered(ring.published.seqno, ++next_);
  wake(ring.receiver);
  return true;
}

bool Sender::wait_for_slot(const Patience& patience) {
  Ring& ring = segment_->ring();
  if (take_credits()) return true;
  switch (
      waiter_.wait(ring.consumed, consumed_, ring.sender, *peer_, patience.timeout, patience.interrupted)) {
    case Woken::kReady:
      break;
    case Woken::kLate:
      throw DeadlinePassed(peer_->name() + " has not given back any of the channel's " +
                           std::to_string(segment_->geometry().slots) + " slots in time");
    case Woken::kAlone:
      throw PeerLost(peer_->name() + " has ended with " + std::to_string(next_ - consumed_) +
                     " messages not consumed");
    case Woken::kInterrupted:
      return false;
  }
  // In the order in which wait_for_message() looks, and for its reasons.
  const bool closed = load_acquire(ring.consumed.state) != State::kOpen;
  if (take_credits()) return true;
  if (closed) throw ChannelClosed(peer_->name() + " has closed the channel and takes no more messages");
  throw Corrupted(peer_->name() + " has taken back that it consumed something or closed");
}

// Whether there is a free slot.
bool Sender::take_credits() {
  const std::uint64_t consumed_seqno = load_acquire(segment_->ring().consumed.seqno);
  if (consumed_seqno - consumed_ > next_ - consumed_) {
    throw Corrupted(peer_->name() + " claims to have consumed messages that were never sent");
  }
  consumed_ = consumed_seqno;
  return next_ - consumed_ < segment_->geometry().slots;
}

bool Sender::is_ready() const {
  return consumed() + segment_->geometry().slots != next_ ||
         load_acquire(segment_->ring().consumed.state) != State::kOpen;
}

std::uint64_t Sender::consumed() const {
  const std::uint64_t consumed_seqno = load_acquire(segment_->ring().consumed.seqno);
  return consumed_seqno - consumed_ > next_ - consumed_ ? consumed_ : consumed_seqno;
}

void Sender::close() {
  if (!owner_.is_here() || std::exchange(closed_, true)) return;
  Ring& ring = segment_->ring();
  store_ordered(ring.published.state, State::kClosed);
  wake(ring.receiver);
}

}  // namespace lamina::fhbn
