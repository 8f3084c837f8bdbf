#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "fhbn/rdma/verbs_connection.hpp"
#include "fhbn/rdma/writer.hpp"
#include "fhbn/segment.hpp"

namespace lamina::fhbn::rdma {

// A reliable connection of libibverbs, on any RDMA device: the host posts, the NIC writes.
class VerbsWriter final : public Writer {
public:
  // Registers the ring or its mirror. Of it the peer may write to the first `offered_bytes`, and no further.
  VerbsWriter(std::shared_ptr<VerbsDevice> device, std::shared_ptr<Segment> memory,
              std::size_t offered_bytes);

  VerbsAddress address() const { return connection_.address(); }
  // Once both have done this, both can write.
  void connect(const VerbsAddress& peer, const std::string& peer_name, const Quality& quality = {}) {
    connection_.connect(peer, peer_name, quality);
  }

  bool has_room() const override { return handed_ + queued_count_ + 2 <= completed_ + kDepth; }
  void write(std::uint64_t local_offset, std::uint64_t remote_offset, std::uint64_t bytes) override;
  void write_line(std::uint64_t remote_offset, const Side& line) override;
  void ring() override;
  void check() override;
  void drain(Duration timeout) override;

private:
  // Requests that the NIC may have at a time; more are handed over as it completes them.
  static constexpr std::uint32_t kDepth = 256;
  static constexpr std::uint32_t kMostAtOnce = 32;

  struct Queued {
    abi::SendRequest request;
    abi::Piece piece;
    std::array<std::byte, kLineBytes> line;
  };

  Queued& queue(std::uint64_t remote_offset);
  void wait_until(std::uint64_t completed, Duration timeout);
  [[noreturn]] void fail(NicFault fault, const std::string& code);

  VerbsConnection connection_;
  std::array<Queued, kMostAtOnce> queued_;
  std::uint32_t queued_count_ = 0;
  std::uint64_t handed_ = 0;     // requests that the NIC was given
  std::uint64_t completed_ = 0;  // of them, those that it has done
  std::optional<NicError> failure_;
};

}  // namespace lamina::fhbn::rdma
