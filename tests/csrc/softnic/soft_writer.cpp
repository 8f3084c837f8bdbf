#include "softnic/soft_writer.hpp"

#include <utility>

namespace lamina::fhbn::rdma {

namespace {

// In a ring or its mirror, where both softnics see whether its queue pair has failed: what a wire would tell
// lies in the room before the slots, which a ring has no use for.
Failed failed_in(const std::shared_ptr<Segment>& memory) {
  constexpr std::size_t kOffset = kSlotsOffset - kSeparation;
  static_assert(sizeof(Ring) <= kOffset);
  auto* const begin = static_cast<std::byte*>(memory->memory());
  return {memory, reinterpret_cast<std::uint32_t*>(begin + kOffset)};
}

}  // namespace

std::shared_ptr<Segment> mapped_for_softnic(const std::shared_ptr<RingMemory>& memory) {
  if (!memory->is_on_device()) return std::static_pointer_cast<Segment>(memory);
  if (memory->descriptor() < 0) throw ChannelError("a softnic reaches a GPU's memory by its dmabuf only");
  try {
    return Segment::attach(memory->descriptor());
  } catch (const std::exception&) {
    throw ChannelError("a softnic can map the dmabuf of an emulated GPU only");
  }
}

SoftWriter::SoftWriter(std::shared_ptr<SoftNic> nic, std::shared_ptr<RingMemory> memory,
                       std::size_t offered_bytes)
    : nic_(std::move(nic)),
      memory_(std::move(memory)),
      observed_(mapped_for_softnic(memory_)),
      offered_bytes_(offered_bytes),
      registered_(nic_->register_memory(static_cast<std::byte*>(observed_->memory()), memory_->bytes(),
                                        observed_, memory_->memory())) {}

SoftWriter::~SoftWriter() {
  writer_.reset();
  nic_->deregister(registered_.key);
}

RemoteMemory SoftWriter::address() const {
  return {reinterpret_cast<std::uintptr_t>(memory_->memory()), offered_bytes_, registered_.key};
}

void SoftWriter::connect(const std::shared_ptr<Segment>& peer_memory, const RemoteMemory& known_as,
                         const RemoteMemory& requested, const std::string& peer_name) {
  auto* const there = static_cast<std::byte*>(peer_memory->memory());
  QueuePair pair =
      nic_->connect(kBlocks, {there, known_as, peer_memory, failed_in(peer_memory)}, failed_in(observed_));
  qpn_ = pair.send.qpn;
  writer_.emplace(std::move(pair), registered_, requested, peer_name);
}

std::string SoftWriter::unconnected() const { return "this end is not connected to its softnic's peer yet"; }

}  // namespace lamina::fhbn::rdma
