#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "fhbn/rdma/order.hpp"
#include "fhbn/rdma/queue.hpp"
#include "fhbn/rdma/writer.hpp"

namespace lamina::fhbn::rdma {

// The queues of a connected queue pair, and what keeps them: closed with the last that refers to it.
struct QueuePair {
  SendQueue send;
  CompletionQueue completions;
  std::shared_ptr<void> owner;
  bool registers_are_memory = false;  // which a softnic looks at, and no device's
};

// A writer that makes its work requests itself and rings the NIC: an mlx5 one (not verified on hardware) or a
// softnic.
class Mlx5Writer final : public Writer {
public:
  // `peer`: the other end's name, for errors. `patience`: how long the NIC may take for what
  // has to be done before there is room in the queue.
  Mlx5Writer(QueuePair pair, const LocalMemory& local, const RemoteMemory& remote, std::string peer,
             Duration patience = std::chrono::seconds(10));

  bool has_room() const override;
  void write(std::uint64_t local_offset, std::uint64_t remote_offset, std::uint64_t bytes) override;
  void write_line(std::uint64_t remote_offset, const Side& line) override;
  void ring() override;
  void check() override;
  void drain(Duration timeout) override;

  // For a device that posts to the same queue in its place: where it is, what requests say, and how far it
  // is.
  const QueuePair& queues() const { return pair_; }
  const LocalMemory& local() const { return local_; }
  const RemoteMemory& remote() const { return remote_; }
  const SendState& state() const { return state_; }
  // Goes on from where they have left it.
  void resume(const SendState& state) { state_ = state; }

private:
  void make_room(std::uint32_t blocks, Duration timeout);
  void wait_until_done(std::uint32_t block, Clock::time_point end);
  Remote remote_at(std::uint64_t offset, std::uint64_t bytes) const;

  QueuePair pair_;
  SendState state_;
  LocalMemory local_;
  RemoteMemory remote_;
  std::string peer_;
  Duration patience_;
  std::optional<NicError> failure_;
};

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
