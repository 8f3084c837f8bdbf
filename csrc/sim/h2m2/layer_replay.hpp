#pragma once

#include <cstdint>
#include <vector>

#include "sim/h2m2/board.hpp"
#include "sim/h2m2/dram.hpp"
#include "sim/h2m2/pages.hpp"

namespace lamina::h2m2 {

// One decoder layer at one side, read by read: what its cores' DMA engines ask for, block by block, through
// the TLB and the DRAM, and the tiles that wait for it. Closed formulas for the same are in times.hpp.

// What the paper leaves open of how a layer is read.
struct Reading {
  // A tile's weights lie together; else each of its columns is as far from the next as the matrix is high.
  bool packed = true;
  // Cores take tiles (of attention: requests of a head) in turn; else each takes those that follow each
  // other.
  bool in_turn = false;
  bool translated = true;  // TLB misses cost time
  bool computed = true;    // computing does; without it and TLB misses what is left is the memory
};

enum class Kernel : std::uint8_t { kQkv, kAttention, kProjection, kUp, kDown };

struct KernelReplay {
  Kernel kernel = Kernel::kQkv;
  double ns = 0;         // replayed
  double closed_ns = 0;  // by the closed formula, with TLB misses if they are replayed
  double closed_bytes = 0;
  std::int64_t misses = 0;
  Dram::Counts dram;
};

// The kernels of a middle layer, in order, each begun when the one before has ended. Weights and KV are where
// a new board's page tables put them: weights by layer, then KV by column. Requests have so many tokens each.
// `chips` at the side share its TLBs' entries and walkers. Throws std::invalid_argument for a mapping of
// whole layers, or activations that do not fit into half of the scratchpads.
std::vector<KernelReplay> replay_layer(const Board& board, const Shape& shape, const Mapping& mapping,
                                       const std::vector<std::int64_t>& lengths, Where where, int chips,
                                       const DramTiming& dram, const Reading& reading);

}  // namespace lamina::h2m2
