#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "fhbn/process.hpp"
#include "fhbn/rdma/verbs_device.hpp"
#include "fhbn/segment.hpp"

namespace lamina::fhbn::rdma {

// What the peer has to know of an end before it can write to it.
struct VerbsAddress {
  PortAddress port;
  std::uint32_t queue_pair;
  std::uint32_t first_psn;  // of the packets that this end will send
  std::uint32_t mtu;        // as verbs count: 1 for 256 bytes, to 5 for 4096
  std::uint64_t memory;     // where what it may write to begins
  std::uint32_t rkey;
};

// Not in a fork: there it is still the parent's, in the kernel too.
template <auto Ibverbs::* kDestroy>
struct Destroyer {
  Owner owner;
  void operator()(auto* made) const {
    if (owner.is_here()) (ibverbs().*kDestroy)(made);
  }
};
using RegisteredRegion = std::unique_ptr<abi::MemoryRegion, Destroyer<&Ibverbs::dereg_mr>>;

// How much the queues take.
struct Depth {
  std::uint32_t requests;
  std::uint32_t inline_bytes;
  std::uint32_t completions;
};

// By which queues a network carries what is sent: in a lossless fabric not all of them lose nothing.
struct Quality {
  std::uint8_t service_level = 0;  // on InfiniBand, and RoCE's priority in VLANs
  std::uint8_t traffic_class = 0;  // of routed packets: DSCP and ECN
};

// A queue pair of libibverbs in reliable connection with another one, and the memory that the two write to.
// What posts to it is another matter.
class VerbsConnection {
public:
  // Registers the ring or its mirror, a GPU's by its dmabuf or, without one, by its address, for which
  // nvidia-peermem has to be loaded (not verified on hardware). Of it the peer may write to the first
  // `offered_bytes`, and no further.
  VerbsConnection(std::shared_ptr<VerbsDevice> device, std::shared_ptr<const RingMemory> memory,
                  std::size_t offered_bytes, const Depth& depth);

  VerbsAddress address() const;
  // Once both have done this, both can write. ChannelError if the peer's address cannot be, or the device
  // takes it for none.
  void connect(const VerbsAddress& peer, const std::string& peer_name, const Quality& quality = {});

  const VerbsDevice& device() const { return *device_; }
  const RingMemory& memory() const { return *memory_; }
  std::uint32_t local_key() const { return own_ ? own_->lkey : offered_->lkey; }
  abi::CompletionQueue* completions() const { return completions_.get(); }
  abi::QueuePair* pair() const { return pair_.get(); }
  const VerbsAddress& peer() const { return peer_; }
  const std::string& peer_name() const { return peer_name_; }

private:
  void register_memory(std::size_t offered_bytes);
  RegisteredRegion registered(std::size_t bytes, int access) const;
  void require_sound(const VerbsAddress& peer, const std::string& peer_name) const;
  void create_queues(const Depth& depth);
  void change(abi::QueuePairAttributes& attributes, int which, const char* to);
  abi::QueuePairAttributes path_to(const VerbsAddress& peer, const Quality& quality) const;

  std::shared_ptr<VerbsDevice> device_;
  std::shared_ptr<const RingMemory> memory_;
  // In the order in which they need each other: destroyed from the last to the first.
  RegisteredRegion offered_;
  RegisteredRegion own_;  // of memory that is not all offered
  std::unique_ptr<abi::CompletionQueue, Destroyer<&Ibverbs::destroy_cq>> completions_;
  std::unique_ptr<abi::QueuePair, Destroyer<&Ibverbs::destroy_qp>> pair_;

  std::uint32_t first_psn_;
  VerbsAddress peer_{};
  std::string peer_name_ = "a peer";
};

}  // namespace lamina::fhbn::rdma
