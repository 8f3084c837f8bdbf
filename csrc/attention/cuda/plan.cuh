#pragma once

#include <cstdint>

#include "attention/cuda/device.cuh"
#include "attention/cuda/partition.hpp"

namespace lamina::attention::cuda {

constexpr int kPlanThreads = 1024;
constexpr int kPlanSharedBytes = (kPlanThreads + 1) * 4;

struct PlanArgs {
  const std::int32_t* lists;  // [requests + 1]: where each request's index list begins
  std::int32_t requests;
  std::int32_t kv_heads;
  std::int32_t window;
  std::int32_t chunk;
  Which which;
  std::int32_t tile;     // tokens
  std::int32_t workers;  // of the grid that will be launched
  std::int64_t counters;
  Plan* plan;
  std::int32_t* first;
  std::int32_t* begin;
  std::int32_t* end;
  std::int32_t* offset;
  std::int32_t* arrivals;
};

// Sums over threads 0..i of the block, for each thread i. `shared` has room for one number a thread.
LAMINA_DEVICE std::int32_t sum_up_to(std::int32_t own, std::int32_t* shared) {
  const int i = thread_index();
  shared[i] = own;
  sync_block();
  for (int step = 1; step < kPlanThreads; step *= 2) {
    const std::int32_t before = i >= step ? shared[i - step] : 0;
    sync_block();
    own += before;
    shared[i] = own;
    sync_block();
  }
  return own;
}

// Shares a batch's tokens among workers, from lengths that only the device knows. One block: a batch is some
// hundred requests, and this runs once a step, not once a layer.
LAMINA_KERNEL(kPlanThreads) share_out(const PlanArgs args) {
  auto* const sums = reinterpret_cast<std::int32_t*>(shared_memory());
  std::int32_t* const empty = sums + kPlanThreads;
  std::int32_t tiles = 0;  // of a head
  std::int32_t none = 0;
  for (int from = 0; from < args.requests; from += kPlanThreads) {
    const int request = from + thread_index();
    Tokens tokens{0, 0};
    if (request < args.requests) {
      tokens = visible({args.lists[request], args.lists[request + 1]}, args.window, args.chunk, args.which);
      args.begin[request] = tokens.begin;
      args.end[request] = tokens.end;
      if (tokens.begin == tokens.end) ++none;
    }
    const std::int32_t own = tiles_of(tokens, args.tile);
    const std::int32_t up_to = sum_up_to(own, sums);
    if (request < args.requests) args.offset[request] = tiles + up_to - own;
    tiles += sums[kPlanThreads - 1];
    sync_block();
  }
  sum_up_to(none, sums);
  if (thread_index() == kPlanThreads - 1) *empty = sums[thread_index()];
  if (thread_index() == 0) args.offset[args.requests] = tiles;
  sync_block();  // also for the offsets, which this block reads again

  const Line line = Line::among(static_cast<std::int64_t>(tiles) * args.kv_heads, args.workers);
  if (thread_index() == 0) *args.plan = {line, *empty};
  for (int worker = thread_index(); worker < args.workers; worker += kPlanThreads) {
    const bool works = worker < line.workers;
    const auto in_head = works ? static_cast<std::int32_t>(line.share(worker) % tiles) : 0;
    args.first[worker] = works ? request_of(args.offset, args.requests, in_head) : 0;
  }
  // The last to arrive leaves zero; this makes it so for new memory and after a launch that did not finish.
  for (std::int64_t i = thread_index(); i < args.counters; i += kPlanThreads) args.arrivals[i] = 0;
}

}  // namespace lamina::attention::cuda
