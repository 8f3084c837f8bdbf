#pragma once

#include <memory>
#include <string>

#include "fhbn/rdma/mlx5_writer.hpp"
#include "fhbn/rdma/verbs_connection.hpp"

namespace lamina::fhbn::rdma {

// ChannelError unless it is an mlx5 NIC that its library knows.
void require_mlx5(const VerbsDevice& device);

// A writer on a ConnectX: libibverbs makes the connection, as for VerbsWriter, and our own requests go into
// its queues. Not verified on hardware.
class ConnectxWriter final : public QueueWriter {
public:
  // Registers the ring or its mirror. Of it the peer may write to the first `offered_bytes`, and no further.
  ConnectxWriter(std::shared_ptr<VerbsDevice> device, std::shared_ptr<const RingMemory> memory,
                 std::size_t offered_bytes);

  VerbsAddress address() const { return connection_->address(); }
  // Once both have done this, both can write.
  void connect(const VerbsAddress& peer, const std::string& peer_name, const Quality& quality = {});

private:
  std::string unconnected() const override;

  std::shared_ptr<VerbsConnection> connection_;
};

}  // namespace lamina::fhbn::rdma
