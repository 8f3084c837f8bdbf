#include "fhbn/rdma/lent_queue.hpp"

#include <bit>
#include <cstddef>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "fhbn/cuda/channel.h"
#include "fhbn/rdma/writer.hpp"

namespace lamina::fhbn::rdma {

namespace {

// Off by default: no device has shown yet that its stores reach a register together.
bool is_blueflame_enabled() {
  const char* value = std::getenv("LAMINA_CUDA_BLUEFLAME");
  return value != nullptr && std::string_view(value) == "1";
}

}  // namespace

LentQueue::LentQueue(std::shared_ptr<Mlx5Writer> writer, std::shared_ptr<const RingMemory> memory,
                     std::shared_ptr<const Peer> peer, bool sends)
    : peer_(std::move(peer)), writer_(std::move(writer)), memory_(std::move(memory)), sends_(sends) {}

lamina_cuda_nic LentQueue::for_device(std::int64_t timeout_ns) const {
  const QueuePair& pair = writer_->queues();
  return {.queues = {.requests = pair.send.requests,
                     .send_record = pair.send.doorbell_record,
                     .registers = pair.send.registers,
                     .completions = pair.completions.entries,
                     .completion_record = pair.completions.doorbell_record,
                     .blocks = pair.send.blocks,
                     .completion_count = pair.completions.count,
                     .qpn = pair.send.qpn,
                     .half_bytes = pair.send.half_bytes,
                     .registers_are_io = pair.registers_are_memory ? 0 : 1,
                     .blueflame = pair.send.blueflame && is_blueflame_enabled() ? 1 : 0},
          .state = std::bit_cast<lamina_cuda_nic_state>(writer_->state()),
          .memory = memory_->memory(),
          .bytes = memory_->bytes(),
          .local_key = writer_->local().key,
          .remote_key = writer_->remote().key,
          .remote_address = writer_->remote().address,
          .side = sends_ ? LAMINA_CUDA_CHANNEL_SENDS : LAMINA_CUDA_CHANNEL_RECEIVES,
          .on_device = memory_->is_on_device() ? 1 : 0,
          .timeout_ns = timeout_ns,
          .peer = peer_->name().c_str()};
}

void LentQueue::close(const lamina_cuda_nic_left& left) {
  if (left.works == 0 || left.closed != 0 || !owner_.is_here() || peer_has_ended()) return;
  writer_->resume(std::bit_cast<SendState>(left.state));
  write_goodbye(*writer_, sends_ ? offsetof(Ring, published) : offsetof(Ring, consumed), left.notified);
}

}  // namespace lamina::fhbn::rdma
