#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/cuda/partition.hpp"

namespace lamina::attention::cuda {

// The work plan and the parts of cut units, in one device buffer of the caller's. Its addresses depend on the
// batch and the device only, never on lengths, so that a captured graph finds them where they were.
struct Workspace {
  Plan* plan;
  std::int32_t* first;     // [workers]: the request that a worker's share begins in
  std::int32_t* begin;     // [requests]: visible tokens
  std::int32_t* end;       // [requests]
  std::int32_t* offset;    // [requests + 1]: tiles of one head before each request
  std::int32_t* arrivals;  // [passes][units]: how many workers have left their part; 0 between launches
  float* part_lse;         // [passes][parts][heads per pass]
  float* part_out;         // [passes][parts][heads per pass][head_dim]
  std::size_t bytes;

  struct Size {
    std::int32_t requests;
    std::int32_t kv_heads;
    std::int32_t workers;
    std::int32_t passes;  // how often the heads of a group are gone through, so many at a time
    std::int32_t heads_per_pass;
    std::int32_t head_dim;
  };

  static Workspace at(void* memory, const Size& size) {
    std::size_t used = 0;
    // On integers, because without memory this only counts.
    const auto take = [&](std::size_t bytes) {
      const std::uintptr_t piece = reinterpret_cast<std::uintptr_t>(memory) + used;
      used += (bytes + 255) / 256 * 256;
      return piece;
    };
    const auto requests = static_cast<std::size_t>(size.requests);
    const std::size_t units = requests * static_cast<std::size_t>(size.kv_heads);
    const auto passes = static_cast<std::size_t>(size.passes);
    const std::size_t rows =
        passes * static_cast<std::size_t>(size.heads_per_pass) *
        static_cast<std::size_t>(part_count(static_cast<std::int64_t>(units), size.workers));
    Workspace made{};
    made.plan = reinterpret_cast<Plan*>(take(sizeof(Plan)));
    made.first = reinterpret_cast<std::int32_t*>(take(static_cast<std::size_t>(size.workers) * 4));
    made.begin = reinterpret_cast<std::int32_t*>(take(requests * 4));
    made.end = reinterpret_cast<std::int32_t*>(take(requests * 4));
    made.offset = reinterpret_cast<std::int32_t*>(take((requests + 1) * 4));
    made.arrivals = reinterpret_cast<std::int32_t*>(take(passes * units * 4));
    made.part_lse = reinterpret_cast<float*>(take(rows * 4));
    made.part_out = reinterpret_cast<float*>(take(rows * static_cast<std::size_t>(size.head_dim) * 4));
    made.bytes = used;
    return made;
  }
};

}  // namespace lamina::attention::cuda
