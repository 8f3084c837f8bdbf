#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "fhbn/rdma/mlx5_writer.hpp"
#include "fhbn/rdma/softnic.hpp"
#include "fhbn/segment.hpp"

namespace lamina::fhbn::rdma {

// An end's queue pair on a softnic, posted to as on an mlx5 NIC. Part of a test bench: both ends are on one
// machine, and each has the other's memory mapped, so that its softnic can write there.
class SoftWriter final : public Writer {
public:
  // Registers the ring or its mirror. Of it the peer may write to the first `offered_bytes`, and no further.
  SoftWriter(std::shared_ptr<SoftNic> nic, std::shared_ptr<Segment> memory, std::size_t offered_bytes);
  ~SoftWriter() override;

  // What this end's memory is registered as.
  RemoteMemory address() const;
  // `known_as`: what the peer's memory is registered as. `told`: what requests say, which should be the same.
  void connect(const std::shared_ptr<Segment>& peer_memory, const RemoteMemory& known_as,
               const RemoteMemory& told, const std::string& peer_name);

  // What puts its requests into the queue; ChannelError before connect().
  Mlx5Writer& connected();

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

  // Cuts the link; lets the queue pair fail.
  void unplug() { nic_->unplug(qpn_); }
  void fail() { nic_->fail(qpn_); }
  const SoftCounts& counts() const { return nic_->counts(qpn_); }

private:
  static constexpr std::uint32_t kBlocks = 256;  // of the send queue

  std::shared_ptr<SoftNic> nic_;
  std::shared_ptr<Segment> memory_;
  std::size_t offered_bytes_;
  LocalMemory registered_;
  std::uint32_t qpn_ = 0;
  std::optional<Mlx5Writer> writer_;  // once connected
};

}  // namespace lamina::fhbn::rdma
