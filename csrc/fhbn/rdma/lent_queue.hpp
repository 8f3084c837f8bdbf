#pragma once

#include <cstdint>
#include <memory>

#include "fhbn/cuda/nic.h"
#include "fhbn/process.hpp"
#include "fhbn/rdma/mlx5_writer.hpp"
#include "fhbn/segment.hpp"
#include "fhbn/wait.hpp"

namespace lamina::fhbn::rdma {

// A writer's queue while a device posts there, for a device's end of a channel (cuda/nic.h). The host has it
// back when the device is done, for the peer's last notification.
class LentQueue {
public:
  // `memory`: the ring, or the mirror of an end that sends.
  LentQueue(std::shared_ptr<Mlx5Writer> writer, std::shared_ptr<const RingMemory> memory,
            std::shared_ptr<const Peer> peer, bool sends);
  LentQueue(const LentQueue&) = delete;
  LentQueue& operator=(const LentQueue&) = delete;

  // The device's description: addresses of queue and memory, and the host's progress.
  lamina_cuda_nic for_device(std::int64_t timeout_ns) const;

  // Which explains why its NIC answers no more.
  bool peer_has_ended() const { return peer_->has_ended(); }

  // The device posts no more. If the NIC still works, the host goes on where the device has left the queue:
  // it notifies the peer that there will be nothing more, and waits until its NIC has that.
  void close(const lamina_cuda_nic_left& left);

private:
  std::shared_ptr<const Peer> peer_;  // first: its connection goes after the queue pair
  std::shared_ptr<Mlx5Writer> writer_;
  std::shared_ptr<const RingMemory> memory_;
  bool sends_;
  Owner owner_;
};

}  // namespace lamina::fhbn::rdma
