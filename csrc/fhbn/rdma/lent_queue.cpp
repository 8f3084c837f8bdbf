#include "fhbn/rdma/lent_queue.hpp"

#include <cstddef>
#include <utility>

#include "fhbn/ordered.hpp"
#include "fhbn/rdma/line.hpp"

namespace lamina::fhbn::rdma {

LentQueue::LentQueue(std::shared_ptr<Mlx5Writer> writer, std::shared_ptr<Segment> memory,
                     std::shared_ptr<const Peer> peer, bool sends)
    : peer_(std::move(peer)), writer_(std::move(writer)), memory_(std::move(memory)), sends_(sends) {}

bool LentQueue::peer_has_closed() const {
  const Ring& ring = memory_->ring();
  return load_acquire((sends_ ? ring.consumed : ring.published).state) != State::kOpen;
}

void LentQueue::close(const SendState& state, std::uint64_t told) {
  if (!owner_.is_here() || peer_has_closed() || peer_has_ended()) return;
  writer_->resume(state);
  try {
    if (!writer_->has_room()) writer_->drain(kGoodbye);
    writer_->write_line(sends_ ? offsetof(Ring, published) : offsetof(Ring, consumed),
                        {told, State::kClosed, kUnheard});
    writer_->drain(kGoodbye);  // which rings, too
  } catch (const NicError&) {
    // Then the peer hears of this end by the connection over which the two have met.
  }
}

}  // namespace lamina::fhbn::rdma
