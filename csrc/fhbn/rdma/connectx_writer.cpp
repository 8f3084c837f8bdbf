#include "fhbn/rdma/connectx_writer.hpp"

#include <cstdint>
#include <utility>

#include "fhbn/rdma/mlx5dv.hpp"

namespace lamina::fhbn::rdma {

namespace {

// The driver makes room for as many requests with as many bytes in each: four blocks to a request.
constexpr std::uint32_t kRequests = 128;
constexpr std::uint32_t kBlocksEach = blocks_of(inline_segments(kLongInline));
// Drivers round up, and a send queue's every block may get a completion.
constexpr Depth kDepth{kRequests, kLongInline, 2 * kRequests * kBlocksEach};

}  // namespace

ConnectxWriter::ConnectxWriter(std::shared_ptr<VerbsDevice> device, std::shared_ptr<Segment> memory,
                               std::size_t offered_bytes)
    : connection_(
          std::make_shared<VerbsConnection>(std::move(device), std::move(memory), offered_bytes, kDepth)) {}

void ConnectxWriter::connect(const VerbsAddress& peer, const std::string& peer_name) {
  connection_->connect(peer, peer_name);
  const Segment& memory = connection_->memory();
  const LocalMemory local{static_cast<const std::byte*>(memory.memory()), memory.bytes(),
                          connection_->local_key()};
  // The peer's is of the same shape. How much of it may be written to is its NIC's to know.
  const RemoteMemory remote{peer.memory, memory.bytes(), peer.rkey};
  writer_.emplace(queues_of(connection_), local, remote, peer_name);
}

std::string ConnectxWriter::unconnected() const {
  return connection_->device().name() + ": this end is not connected yet";
}

}  // namespace lamina::fhbn::rdma
