// As much of libmlx5 as lamina calls.
#include "fake_mlx5/fake_mlx5.hpp"
#include "fhbn/rdma/mlx5dv_abi.hpp"

namespace abi = lamina::fhbn::rdma::abi;

#pragma GCC visibility push(default)
extern "C" {

bool mlx5dv_is_supported(abi::Device*) { return fake_mlx5::settings().is_mlx5; }

int mlx5dv_init_obj(abi::Mlx5Objects* objects, std::uint64_t) {
  const fake_mlx5::Settings& settings = fake_mlx5::settings();
  if (settings.showing_fails_with != 0) return settings.showing_fails_with;
  const auto [send, completions] = fake_mlx5::queues(objects->pair);
  abi::Mlx5QueuePair& pair = *objects->shown_pair;
  pair.doorbell_records = send.doorbell_record - abi::kSendingRecord;
  pair.send = {send.requests, send.blocks, settings.block_bytes};
  pair.registers = {send.registers, settings.has_blueflame ? send.half_bytes : 0};
  abi::Mlx5CompletionQueue& queue = *objects->shown_completions;
  queue.entries = completions.entries;
  queue.doorbell_records = completions.doorbell_record;
  queue.count = completions.count;
  queue.entry_bytes = settings.entry_bytes;
  return 0;
}

}  // extern "C"
#pragma GCC visibility pop
