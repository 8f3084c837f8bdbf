#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "fhbn/rdma/mlx5_writer.hpp"

namespace lamina::fhbn::rdma {

// A writer with a queue for requests of our own, which is there once it is connected: a ConnectX's or a
// softnic's.
class QueueWriter : public Writer {
public:
  bool has_room() const final { return writer_ && writer_->has_room(); }
  void write(std::uint64_t local_offset, std::uint64_t remote_offset, std::uint64_t bytes) final {
    connected().write(local_offset, remote_offset, bytes);
  }
  void write_line(std::uint64_t remote_offset, const Side& line) final {
    connected().write_line(remote_offset, line);
  }
  void ring() final { connected().ring(); }
  void check() final { connected().check(); }
  void drain(Duration timeout) final { connected().drain(timeout); }

  // What puts its requests into the queue; ChannelError before it is connected.
  Mlx5Writer& connected() {
    if (!writer_) throw ChannelError(unconnected());
    return *writer_;
  }

protected:
  // The error's sentence where it is used too early.
  virtual std::string unconnected() const = 0;

  std::optional<Mlx5Writer> writer_;
};

}  // namespace lamina::fhbn::rdma
