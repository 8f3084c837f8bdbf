#pragma once

#include <memory>
#include <optional>
#include <string>

#include "fhbn/rdma/mlx5_writer.hpp"
#include "fhbn/rdma/verbs_connection.hpp"
#include "fhbn/rdma/writer.hpp"

namespace lamina::fhbn::rdma {

// A writer on a ConnectX: libibverbs makes the connection, as for VerbsWriter, and our own requests go into
// its queues. Not verified on hardware.
class ConnectxWriter final : public Writer {
public:
  // Registers the ring or its mirror. Of it the peer may write to the first `offered_bytes`, and no further.
  ConnectxWriter(std::shared_ptr<VerbsDevice> device, std::shared_ptr<Segment> memory,
                 std::size_t offered_bytes);

  VerbsAddress address() const { return connection_->address(); }
  // Once both have done this, both can write.
  void connect(const VerbsAddress& peer, const std::string& peer_name);

  bool has_room() const override { return writer_ && writer_->has_room(); }
  void write(std::uint64_t local_offset, std::uint64_t remote_offset, std::uint64_t bytes) override {
    connected().write(local_offset, remote_offset, bytes);
  }
  void write_line(std::uint64_t remote_offset, const Side& line) override {
    connected().write_line(remote_offset, line);
  }
  void ring() override { connected().ring(); }
  void check() override { connected().check(); }
  void drain(Duration timeout) override { connected().drain(timeout); }

  // What puts its requests into the queue; ChannelError before connect().
  Mlx5Writer& connected();

private:
  std::shared_ptr<VerbsConnection> connection_;
  std::optional<Mlx5Writer> writer_;
};

}  // namespace lamina::fhbn::rdma
