#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "fhbn/segment.hpp"
#include "softnic/softnic.hpp"

namespace lamina::fhbn::rdma {

// A ring or its mirror where a softnic's thread reaches it: an emulated GPU's by mapping its dmabuf.
// ChannelError where that cannot be.
std::shared_ptr<Segment> mapped_for_softnic(const std::shared_ptr<RingMemory>& memory);

// An end's queue pair on a softnic, posted to as on an mlx5 NIC. Part of a test bench: both ends are on one
// machine, and each has the other's memory mapped, so that its softnic can write there.
class SoftWriter final : public QueueWriter {
public:
  // Registers the ring or its mirror. Of it the peer may write to the first `offered_bytes`, and no further.
  SoftWriter(std::shared_ptr<SoftNic> nic, std::shared_ptr<RingMemory> memory, std::size_t offered_bytes);
  ~SoftWriter() override;

  // What this end's memory is registered as.
  RemoteMemory address() const;
  // `known_as`: what the peer's memory is registered as. `requested`: what requests contain.
  void connect(const std::shared_ptr<Segment>& peer_memory, const RemoteMemory& known_as,
               const RemoteMemory& requested, const std::string& peer_name);

  // Cuts the link; lets the queue pair fail.
  void unplug() { nic_->queue(qpn_)->unplug(); }
  void fail() { nic_->queue(qpn_)->fail(); }
  const SoftCounts& counts() const { return nic_->queue(qpn_)->counts(); }
  std::uint16_t posted() const { return nic_->queue(qpn_)->posted(); }

private:
  std::string unconnected() const override;

  static constexpr std::uint32_t kBlocks = 256;  // of the send queue

  std::shared_ptr<SoftNic> nic_;
  std::shared_ptr<RingMemory> memory_;
  std::shared_ptr<Segment> observed_;  // the same, as the softnic's thread reaches it
  std::size_t offered_bytes_;
  LocalMemory registered_;
  std::uint32_t qpn_ = 0;
};

}  // namespace lamina::fhbn::rdma
